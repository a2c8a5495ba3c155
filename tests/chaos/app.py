"""The tasks of a storm, and the journal that tells what of them really ran. Imported by workers.

The journal is the storm's audit: a file to which each execution adds a line when it begins and one when it ends, each
with one write that neither a kill nor an outage of the server can undo. A table would miss the executions that matter
most, those while the server is away. Times are CLOCK_MONOTONIC, which no step of the wall clock moves.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgsched import App, Interrupted, Retry, current_task

VARIABLE = "PGSCHED_CHAOS_JOURNAL"
MIB = 1024 * 1024

app = App()
soon = Retry(max=8, base=0.05, cap=1.0)
_journal: list[int] = []


@contextmanager
def noted() -> Iterator[str]:
    """Note begin and end of an execution; yields its name, which no other has."""
    task = current_task()
    name = f"{os.getpid()}-{time.monotonic_ns()}"
    _note("began", name, task.id, task.attempt, os.getpid(), os.getppid())
    end = "returned"
    try:
        yield name
    except Interrupted:
        end = "interrupted"
        raise
    except BaseException:
        end = "raised"
        raise
    finally:
        _note(end, name)


def _note(what: str, name: str, *more: int) -> None:
    if not _journal:
        _journal.append(os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    line = " ".join([what, name, f"{time.monotonic():.6f}", *map(str, more)])
    os.write(_journal[0], f"{line}\n".encode())


def pause(seconds: float) -> None:
    """Sleep. Not with ``time.sleep``, which libfaketime breaks where it leaves the monotonic clock alone."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        select.poll().poll(left * 1000)


@app.task(retry=soon)
def noop(amount: int) -> str:
    with noted() as name:
        return name


@app.task(retry=soon)
def burn(amount: int) -> str:
    with noted() as name:
        until = time.process_time() + amount / 1000
        while time.process_time() < until:
            pass
        return name


@app.task(retry=soon)
def nap(amount: int) -> str:
    with noted() as name:
        pause(amount / 1000)
        return name


@app.task(retry=soon)
def wrong(amount: int) -> None:
    with noted() as name:
        raise ValueError(name)


@app.task(retry=soon)
def flaky(amount: int) -> str:
    with noted() as name:
        # Later attempts take longer: what is written late about an earlier one then meets a running one.
        pause(0.02 if current_task().attempt == 1 else 0.5)
        if current_task().attempt < amount:
            raise ValueError(name)
        return name


@app.task(retry=soon)
def suicide(amount: int) -> None:
    with noted() as name:
        print(name, file=sys.stderr)
        os.kill(os.getpid(), (signal.SIGKILL, signal.SIGSEGV)[amount % 2])
        pause(60)


@app.task(retry=soon, timeout=1.0)
def overtime(amount: int) -> None:
    with noted():
        while True:
            try:
                pause(60)
            except Interrupted:
                if amount % 2:
                    raise


@app.task(retry=soon, memory=160 * MIB)
def hog(amount: int) -> None:
    with noted():
        kept = b"x" * (400 * MIB)
        pause(60)
        del kept
