"""The life of a worker process: born of a fork or an exec, told who it is, ready, serving, gone.

It leads its own process group, dies with its parent, and ignores the signals that end a service. Reached by
:func:`main` in a process that the forkserver has forked, or by ``python -m pgsched.pool.worker`` (start method
"spawn") with its socket as standard input.
"""

import faulthandler
import gc
import io
import os
import socket
import sys
from typing import Final, NoReturn

from pgsched.app import App
from pgsched.pool import boot, wire
from pgsched.pool.boot import LoadError
from pgsched.pool.describe import error_line
from pgsched.pool.page import PageView
from pgsched.pool.runner import LOST_PARENT, Recorder, Runner, cpu_seconds

NOT_BOOTED: Final = 71
"""Exit code of a worker that has said in its Ready why it cannot run."""


def main(sock: socket.socket, app: App | None = None) -> NoReturn:
    """Live as a worker; never returns.

    :param sock: the worker's end of its pair.
    :param app: already imported by the forkserver; None: the Boot says what to import.
    """
    code = 1
    try:
        code = _live(sock, app)
    except BaseException as error:
        sys.stderr.write(f"pgsched: worker failed: {error_line(error)}\n")
    finally:
        # Whatever the user's module left for the interpreter's exit belongs to the forkserver, or may wait for ever.
        boot.flush()
        os._exit(code)


def _live(sock: socket.socket, app: App | None) -> int:
    faulthandler.enable(file=2)
    boot.release_forks()
    # Comes only when we are the supervisor's own child: a parent-death signal set earlier would have been for another.
    frame, descriptors = wire.receive(sock)
    if not frame or frame[0] != wire.BOOT:
        return LOST_PARENT
    told = wire.decode_message(frame)
    boot.die_with_parent()
    if os.getppid() != told["supervisor"]:
        return LOST_PARENT
    boot.set_name(f"pgsched-slot{told['slot']}")
    boot.be_expendable()
    os.environ.update(told["secrets"])
    try:
        if app is None:
            boot.call(told["preparation"])
            app = boot.load_beside(told["app"], sock)
        app.configure(told["dsn"])
        recorder: Recorder | None = boot.call(told["recorder"], told["slot"])
    except LoadError as error:
        wire.send_long(sock, wire.encode_message(wire.READY, {"error": error.line, "details": error.details}))
        return NOT_BOOTED
    _seed()
    _line_buffered()
    gc.freeze()
    page, tickets = descriptors
    runner = Runner(
        sock,
        wire.adopt(tickets),
        PageView(page),
        app.tasks,
        result_limit=told["result_limit"],
        max_memory=told["max_memory"],
        recorder=recorder,
    )
    ready = {"task_types": boot.describe_tasks(app), "cpu_seconds": cpu_seconds()}
    wire.send_long(sock, wire.encode_message(wire.READY, ready))
    runner.serve()
    return 0


def _seed() -> None:
    """Workers forked from one process would all draw the same numbers; ``random`` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _line_buffered() -> None:
    """A line that was printed shall not be lost with the worker."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")


def _spawned() -> NoReturn:
    """Begin as a fresh interpreter whose standard input is the socket."""
    boot.enter()
    main(boot.socket_on_input())


if __name__ == "__main__":
    _spawned()
