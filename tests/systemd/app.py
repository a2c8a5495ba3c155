"""The app that runs as a service; the container has it as ``tasks.py``."""

import os
import signal
import sys
import time

from pgsched import App, Retry, current_task

VERSION = 1
MIB = 1024 * 1024

app = App()
at_once = Retry(max=3, base=0.0, cap=0.0)

# A test may hold the import up.
if os.path.exists("/srv/app/gate"):
    print("the import is held up", file=sys.stderr, flush=True)
while os.path.exists("/srv/app/gate"):
    time.sleep(0.02)


@app.task(retry=at_once)
def nap(seconds: float = 0.0, again: float | None = None) -> int:
    """Sleeps, at a second attempt so long as ``again`` says; returns the version."""
    time.sleep(seconds if again is None or current_task().attempt == 1 else again)
    return VERSION


@app.task(retry=at_once)
def grow(mebibytes: int) -> int:
    """Takes so much memory at its first attempt."""
    return len(b"x" * mebibytes * MIB) if current_task().attempt == 1 else 0


@app.task(retry=at_once)
def work(seconds: float) -> int:
    """Says on the state directory's ``audit`` when it begins and when it has ended; returns the version."""
    _sign("began")
    time.sleep(seconds)
    _sign("ended")
    return VERSION


@app.task(retry=at_once)
def deadly() -> None:
    """Kills its worker, as a bug in a library does."""
    _sign("began")
    os.kill(os.getpid(), signal.SIGSEGV)


def _sign(what: str) -> None:
    task = current_task()
    line = f"{task.id} {task.attempt} {os.getpid()} {VERSION} {what} {time.monotonic()}\n"
    with open(f"{os.environ['STATE_DIRECTORY']}/audit", "a") as audit:
        audit.write(line)
