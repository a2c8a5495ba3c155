"""The clock by which a supervisor judges its lease: it also runs while the machine sleeps, as the database's does."""

import time


def lease_clock() -> float:
    """Seconds since boot, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
