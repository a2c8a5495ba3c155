"""libfaketime (Debian: ``faketime``): processes whose wall clock is wrong, and can be set while they run.

Clocks that only go on are left alone, and with them ``time.sleep`` does not work any more: see ``pause`` of the storm's
tasks. Runs in the test process.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

MISSING = "libfaketime is not there (Debian: apt-get install faketime), or moves the monotonic clock too"
_LIBRARY = "*/faketime/libfaketime.so.1"
_PROBE = """
import os, time
def clocks(): return [time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]
before = clocks()
open(os.environ["FAKETIME_TIMESTAMP_FILE"], "w").write("+5000\\n")
until = time.monotonic() + 2.5
while time.monotonic() < until: pass
after = clocks()
wall, *others = [b - a for a, b in zip(before, after)]
assert wall > 4000 and all(2 < other < 10 for other in others), (wall, others)
"""


def find(directory: Path) -> str | None:
    """The library's path, if it is there and steps the wall clock without touching those that only go on.

    :param directory: for the file that tells the time.
    """
    for found in sorted(Path("/usr/lib").glob(_LIBRARY)):
        clock = directory / "clock-probe"
        set_clock(clock, 0)
        environment = {**os.environ, **wrong_clock(str(found), clock)}
        if not subprocess.run([sys.executable, "-c", _PROBE], env=environment, check=False).returncode:
            return str(found)
    return None


def wrong_clock(library: str, clock: Path) -> dict[str, str]:
    """The environment of a process whose wall clock goes as the file `clock` says; a change shows within a second."""
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def set_clock(clock: Path, seconds: int) -> None:
    """Set a wall clock so many seconds ahead."""
    clock.write_text(f"{seconds:+d}\n")


def forget(pids: Iterable[int]) -> None:
    """Remove what the library leaves behind with each process that is killed under it."""
    for pid in pids:
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            (Path("/dev/shm") / name).unlink(missing_ok=True)
