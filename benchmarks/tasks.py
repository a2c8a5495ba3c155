"""The task types that the scenarios run."""

import fcntl
import os
import time

from benchmarks import stamps
from benchmarks.spinning import spin
from pgsched import App, current_task

app = App()


@app.task
def noop() -> None:
    """Do nothing: what is left is the cost of pgsched."""


@app.task
def hold(gate: str) -> None:
    """Note when it began, and stay until the lock on the gate's file is released."""
    started = stamps.now()
    stamps.note(f"{gate}.starts", current_task().id, os.getpid(), started)
    with open(gate) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


@app.task
def stamp(path: str | None = None, number: int = 0) -> None:
    """Note when the first line ran, by two clocks: the one that this host's processes share, and the world's."""
    started, wall = stamps.now(), time.time_ns()
    if path is not None:
        stamps.note(path, number, started, wall)


@app.task
def burn(loops: int, path: str, number: int) -> None:
    """Keep a processor busy, and note from when to when, and how much of that the processor was ours."""
    started, before = stamps.now(), time.thread_time_ns()
    spin(loops)
    stamps.note(path, number, started, stamps.now(), time.thread_time_ns() - before)
