"""What the tasks of every peer do: the same functions, registered with each library in its own way.

They note what happened in files of one directory and touch neither database nor Redis. Run in the peers' workers.
"""

import functools
import os
import time
from pathlib import Path

from benchmarks import stamps
from benchmarks.peers.place import DIRECTORY, LOOPS, setting
from benchmarks.spinning import spin

COUNTED, STARTED, BURNED, LINGERED = "counted", "started", "burned", "lingered"


def noop() -> None:
    """Count itself: one byte for each run, so that the number of runs is the size of a file."""
    os.write(_counter(), b".")


def stamp() -> None:
    """Note when it began."""
    began = stamps.now()
    stamps.note(_path(STARTED), began)


def burn() -> None:
    """Keep a processor busy in pure Python; note when it began and when it ended."""
    began = stamps.now()
    spin(int(setting(LOOPS)))
    stamps.note(_path(BURNED), began, stamps.now())


def linger() -> None:
    """The first run stays until it is killed; a later one only notes that it began."""
    path = _path(LINGERED)
    stamps.note(path, os.getpid(), stamps.now())
    # A process that outlives the benchmark sees its directory gone.
    while stamps.count(Path(path)) == 1:
        time.sleep(0.02)


TASKS = (noop, stamp, burn, linger)


@functools.cache
def _path(name: str) -> str:
    return os.path.join(setting(DIRECTORY), name)


@functools.cache
def _counter() -> int:
    return os.open(_path(COUNTED), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
