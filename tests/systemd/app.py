"""The app that runs as a service; the container has it as ``tasks.py``."""

import os
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
