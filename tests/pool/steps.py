"""The app whose workers kill themselves at a step of their conversation with the parent, found by a tracing hook.

:func:`arm` traces what comes after it in the worker: the code under test has no hook of its own. Tasks sign in and out
in a file, one write each, so that it is known what ran however the worker ended.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pgsched.pool
from pgsched.app import App

app = App()
_POOL = str(Path(pgsched.pool.__file__).parent)

Trace = Callable[[FrameType, str, Any], Any]


def _deadly(function: str, event: str, nth: int) -> Trace:
    """Die at the nth such event, call, line or return, in the pool's code; an empty function means any."""
    left = nth

    def trace(frame: FrameType, happened: str, _argument: Any) -> Trace | None:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_POOL):
            return None
        if happened == event and function in ("", frame.f_code.co_name):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


@app.task
def arm(function: str, event: str, nth: int) -> None:
    """From now on this worker has so long to live."""
    trace = _deadly(function, event, nth)
    sys.settrace(trace)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Frames that are there already are not traced by themselves.
        frame.f_trace = trace
        frame = frame.f_back


def _sign(path: str, word: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{word}\n".encode())
    os.close(descriptor)


@app.task
def work(path: str, name: str, size: int = 0, filler: str = "") -> str:
    """Sign in, and out; the result is as long as one likes."""
    _sign(path, f"{name} begun")
    result = f"{name} {len(filler)} " + "r" * size
    _sign(path, f"{name} ended")
    return result
