"""The forkserver: a single-threaded process that has imported the user's app and forks workers on request.

It forks twice and lets the first child end, so that the worker becomes a child of the supervisor, which is a subreaper.
When the supervisor is gone it kills the process groups of the workers that were left. With the start method "spawn" it
imports nothing, and the worker executes a fresh interpreter. Run as ``python -m pgsched.pool.forkserver`` with its
control socket as standard input.
"""

import contextlib
import gc
import os
import socket
import sys
import threading
import warnings
from typing import Any, Final, NoReturn

import pgsched
from pgsched.app import App
from pgsched.pool import boot, limits, wire, worker
from pgsched.pool.boot import LoadError

TOLD: Final = 1
LOADED: Final = 2
FORK: Final = 3
FORKED: Final = 4
GONE: Final = 5
TAKEN_OVER: Final = 6
"""Kinds of the messages on the control socket."""


class Forkserver:
    """Serves one control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._app: App | None = None
        self._groups: set[int] = set()
        """Process groups of the workers that the supervisor has not seen the end of."""

    def serve(self) -> None:
        """Import, then fork until the supervisor is gone."""
        frame, _ = wire.receive(self._control)
        if not frame:
            return
        told = wire.decode_message(frame)
        self._groups.update(told["groups"])
        if told["start_method"] == "forkserver":
            os.environ.update(told["secrets"])
            if not self._load(told["app"], told.get("preparation")):
                return
        else:
            self._say(LOADED, {"task_types": None, "threads": 1, "version": pgsched.__version__})
        # A supervisor that was killed leaves an error in the socket when it had not read everything.
        with contextlib.suppress(OSError):
            self._obey()
        self._bury()

    def _obey(self) -> None:
        while True:
            frame, descriptors = wire.receive(self._control)
            if not frame:
                return
            message = wire.decode_message(frame)
            if frame[0] == GONE:
                self._groups.discard(message)
            elif frame[0] == TAKEN_OVER:
                self._groups.update(message)
            elif frame[0] == FORK:
                self._answer(message, descriptors)

    def _load(self, spec: str, preparation: str | None) -> bool:
        # First, because the app may change where it is looked for.
        version = pgsched.__version__
        # An import may take for ever; until there are workers to look after, nothing is lost by dying.
        boot.die_with_parent()
        try:
            boot.call(preparation)
            self._app = boot.load_beside(spec, self._control)
        except LoadError as error:
            self._say(LOADED, {"error": error.line, "details": error.details})
            return False
        boot.die_with_parent(0)
        gc.collect()
        # Pages that no collection touches stay shared with the workers.
        gc.freeze()
        threads = max(len(os.listdir("/proc/self/task")), threading.active_count())
        self._say(LOADED, {"task_types": boot.describe_tasks(self._app), "threads": threads, "version": version})
        return True

    def _say(self, kind: int, content: Any) -> None:
        wire.send_long(self._control, wire.encode_message(kind, content))

    def _answer(self, number: int, descriptors: list[int]) -> None:
        try:
            pid = self._fork(descriptors)
        except OSError as error:
            self._say(FORKED, {"number": number, "error": str(error)})
        else:
            self._groups.add(pid)
            self._say(FORKED, {"number": number, "pid": pid})
        finally:
            wire.close_all(descriptors)

    def _fork(self, descriptors: list[int]) -> int:
        """Make a worker and return its pid when its parent is the supervisor.

        :raises OSError: no process can be made.
        """
        reading, writing = os.pipe()
        try:
            between = _fork()
            if not between:
                os.close(reading)
                self._make_worker(writing, descriptors)
            os.close(writing)
            writing = -1
            answer = os.read(reading, 64)
            # An app that has SIGCHLD ignored has the kernel collect it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(between, 0)
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)
        pid = int(answer or b"0")
        if pid <= 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid

    def _make_worker(self, writing: int, descriptors: list[int]) -> NoReturn:
        """In the first child: fork the worker, tell its pid, and end."""
        try:
            try:
                pid = _fork()
            except OSError as error:
                pid = -(error.errno or 1)
            if pid:
                # Both sides do it: neither the parent's killpg nor the worker's first child may come too early.
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)
                os.write(writing, str(pid).encode())
                os._exit(0)
            os.close(writing)
            self._control.close()
            self._become_worker(*descriptors)
        finally:
            # An error here must not come back as a second forkserver.
            os._exit(1)

    def _become_worker(self, sock: int, output: int) -> NoReturn:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        if self._app is not None:
            worker.main(wire.adopt(sock), self._app)
        os.dup2(sock, 0)
        os.execv(sys.executable, [sys.executable, "-m", "pgsched.pool.worker"])

    def _bury(self) -> None:
        """The supervisor is gone, and its workers with it; what these have started may not be.

        The numbers are still theirs: the supervisor had not collected these workers, so that until a moment ago
        nobody else could get them as a pid, and a group keeps its number while it has a member.
        """
        session = os.getsid(0)
        for group in self._groups:
            if any(member.session == session for member in limits.group_members(group)):
                limits.kill_group(group)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns when there are threads; the parent is told so once, in its log.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def main() -> None:
    """Begin as a fresh interpreter whose standard input is the control socket."""
    boot.enter()
    boot.set_name("pgsched-fork")
    # Its socket is closed by the process's end: before, Python might warn that nobody has closed it.
    forkserver = Forkserver(boot.socket_on_input())
    # The supervisor may go in the middle of a word.
    with contextlib.suppress(OSError):
        forkserver.serve()
    # What the user's module left for the interpreter's exit may wait for ever, and nobody is left to end it.
    os._exit(0)


if __name__ == "__main__":
    main()
