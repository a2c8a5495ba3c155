"""Moments that tasks note while they run: one line of numbers each, appended to a file in the scratch directory.

Not in the database, because a statement would cost more than what is measured. The moments are those of
CLOCK_MONOTONIC, which all processes of a host share. Used in workers and in the benchmark's own processes.
"""

import functools
import os
import time
from pathlib import Path


def now() -> int:
    """Nanoseconds of the clock that every process of this host reads alike."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def note(path: str, *numbers: int) -> None:
    """Append one line; lines of several processes never mix, because one write appends as a whole."""
    os.write(_descriptor(path), (" ".join(map(str, numbers)) + "\n").encode())


def read(path: Path) -> list[tuple[int, ...]]:
    """All lines so far, in the order in which they were written; none when nobody has written yet."""
    if not path.exists():
        return []
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]


def count(path: Path) -> int:
    """How many lines there are; much cheaper than reading them."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@functools.cache
def _descriptor(path: str) -> int:
    # Kept open: opening costs more than writing, and a worker lives no longer than its supervisor.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
