"""The app of the system floor: tasks that sign in, and then do what tasks should not do. Imported by workers only."""

import collections
import ctypes
import itertools
import os
import signal
import sys
import time
from typing import Any, NoReturn

import pgsched
from pgsched import App, Retry, current_task
from tests.audit import entry

app = App()
MIB = 1024 * 1024
LIMIT = 2
"""Seconds."""

at_once = Retry(max=3, base=0.0, cap=0.0)
much_later = Retry(max=3, base=1e6, cap=1e6)


@app.task(retry=at_once)
def nap(seconds: float = 0.0) -> str:
    with entry():
        time.sleep(seconds)
    return "rested"


@app.task(retry=at_once)
def hold(until: str) -> str:
    """Goes on until there is a file of that name."""
    with entry():
        wait_for_file(until)
    return "let go"


@app.task(retry=at_once)
def tick(seconds: float = 0.0, note: str | None = None, until: str | None = None) -> None:
    """Leaves no entry, so that it is tiny; at most its id in a file."""
    if note is not None:
        with open(note, "a") as file:
            file.write(f"{current_task().id}\n")
    time.sleep(seconds)
    if until is not None:
        wait_for_file(until)


def wait_for_file(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


@app.task(retry=at_once)
def hold_interpreter(seconds: int) -> str:
    """No thread of the worker can run meanwhile."""
    with entry():
        ctypes.PyDLL(None).sleep(seconds)
    return "held"


@app.task(retry=at_once, timeout=LIMIT, memory=256 * MIB)
def doomed(ways: list[str]) -> None:
    """Fails in the first way at its first attempt, in the second at its second, and so on, round and round."""
    way = ways[(current_task().attempt - 1) % len(ways)]
    print(f"about to {way}", file=sys.stderr)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    with entry():
        fail(way)


def fail(way: str) -> NoReturn:
    match way:
        case "raise":
            raise ValueError("no")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "oversleep":
            time.sleep(60)
        case "oversleep in C":
            # A loop of the interpreter's own that looks at no signal.
            collections.deque(itertools.repeat(None), maxlen=0)
        case "grow":
            kept = b"x" * 512 * MIB
            time.sleep(60)
            del kept
        case "kill the supervisor":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    raise AssertionError(f"still alive after {way}")


@app.task(retry=Retry(max=50, base=0.05, cap=0.2))
def refuse() -> None:
    with entry():
        raise ValueError("no")


@app.task(retry=much_later)
def refuse_for_long() -> None:
    with entry():
        raise ValueError("no")


@app.task(queue="mail")
def letter() -> str:
    with entry():
        return current_task().queue


@app.task
async def asynchronous(value: Any) -> Any:
    import asyncio

    await asyncio.sleep(0.01)
    return value


@app.task(timeout=60)
def introspect() -> dict[str, Any]:
    task = current_task()
    remaining = task.remaining()
    return {
        "id": task.id,
        "task_type": task.task_type,
        "queue": task.queue,
        "attempt": task.attempt,
        "fence": task.fence,
        "max_retries": task.max_retries,
        "remaining": remaining is not None and 0 < remaining <= 60,
        "stop_requested": task.stop_requested,
        "stop_reason": task.stop_reason,
        "version": pgsched.__version__,
    }


@app.task
def pid() -> int:
    return os.getpid()


@app.task
def chain(left: int) -> int | None:
    return chain.options(priority=3).enqueue(left - 1) if left else None
