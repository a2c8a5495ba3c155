"""The parent's side of the forkserver: starts it, asks it for workers, learns of its end.

Whether and when it is started again is not decided here (``keeping.py``). Runs in the parent, in the loop; never
blocks.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pgsched.dsn import VARIABLE
from pgsched.errors import PoolError
from pgsched.pool import forkserver, limits, wire
from pgsched.pool.settings import PoolSettings
from pgsched.pool.stream import Sink, Stream

THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""What caps the threads of numeric libraries. There is a worker for every CPU already."""
SECRETS: Final = (VARIABLE, "PGPASSWORD")
"""Variables that travel by socket: what a process was started with stays to be read in ``/proc/PID/environ``."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the forkserver says once it has imported the app."""

    task_types: list[dict[str, Any]] | None
    """None with the start method "spawn"."""
    threads: int
    version: str
    """Of the pgsched that it has imported, and its workers with it."""


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """Why it could not."""

    error: str
    details: str


@dataclass(frozen=True, slots=True)
class Forked:
    """The answer to one request."""

    number: int
    pid: int | None
    error: str | None


class Launcher:
    """One forkserver process; made anew for each.

    :param groups: process groups of workers that an earlier forkserver made and that are still there.
    :raises PoolError: there is no interpreter to start.
    :raises OSError: no process or descriptors are left.
    """

    def __init__(self, settings: PoolSettings, sink: Sink, groups: list[int]) -> None:
        if not sys.executable:
            raise PoolError("sys.executable is empty: there is no Python interpreter to start workers with")
        self._parts = wire.Parts()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        self.stream = Stream(reading, sink)
        with theirs:
            try:
                self.pid = _start(theirs.fileno(), writing, environment(_given(settings)))
            except OSError:
                self.close()
                raise
            finally:
                os.close(writing)
        told = {
            "app": settings.app,
            "preparation": settings.preparation,
            "start_method": settings.start_method,
            "groups": groups,
            "secrets": secrets(settings),
        }
        wire.send_message(self.control, forkserver.TOLD, told, [])

    def fork(self, number: int, ends: list[int]) -> bool:
        """Ask for a worker with these descriptors; False where the forkserver does not listen now."""
        try:
            wire.send_message(self.control, forkserver.FORK, number, ends)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def gone(self, pid: int) -> None:
        """A worker has been collected: its number may soon be another's."""
        try:
            wire.send_message(self.control, forkserver.GONE, pid, [])
        except OSError:
            # A forkserver that does not listen is killed or dead.
            return

    def take_over(self, groups: list[int]) -> bool:
        """Have it look after the workers that another forkserver has made; False where it does not listen."""
        try:
            wire.send_message(self.control, forkserver.TAKEN_OVER, groups, [])
        except OSError:
            return False
        return True

    def messages(self) -> list[Loaded | NotLoaded | Forked]:
        """What the forkserver has said; empty too when it is dead, which SIGCHLD tells.

        :raises ProtocolError: it said what nobody understands.
        """
        found: list[Loaded | NotLoaded | Forked] = []
        while True:
            try:
                datagram = self.control.recv(wire.LIMIT, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionResetError):
                return found
            if not datagram:
                # Nobody reads or writes any more; its death says the rest.
                asyncio.get_running_loop().remove_reader(self.control)
                return found
            frame = self._parts.whole(datagram)
            if frame is not None:
                found.append(_understood(frame))

    def kill(self) -> None:
        """End it at once; workers stay."""
        limits.send(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Let it end by itself, as if the supervisor had gone."""
        self.control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptors back."""
        self.control.close()
        self.stream.close()


def _understood(frame: bytes) -> Loaded | NotLoaded | Forked:
    content = wire.decode_message(frame)
    try:
        if frame[0] == forkserver.FORKED:
            return Forked(content["number"], content.get("pid"), content.get("error"))
        if "error" in content:
            return NotLoaded(content["error"], content["details"])
        return Loaded(content["task_types"], content["threads"], content["version"])
    except (KeyError, TypeError) as error:
        raise wire.ProtocolError(f"broken message: {error!r}") from error


def _start(control: int, output: int, variables: Mapping[str, str]) -> int:
    """Start the forkserver's interpreter; what it needs to know comes over its standard input."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "pgsched.pool.forkserver"],
        variables,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, control, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        # Away from the terminal's Ctrl-C and from signals to our group.
        setpgroup=0,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD),
    )


def secrets(settings: PoolSettings) -> dict[str, str]:
    """What forkserver and workers put into their environment themselves, so that tasks find the database as we do."""
    given = _given(settings)
    found = {name: given[name] for name in SECRETS if name in given}
    return found | ({VARIABLE: settings.dsn} if settings.dsn else {})


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What workers are started with: the parent's environment without secrets, and numeric libraries kept to one thread
    unless it says more."""
    kept = {name: value for name, value in given.items() if name not in SECRETS}
    if THREAD_VARIABLES[0] in kept:
        # The libraries follow it where they have no variable of their own.
        return kept
    return {**dict.fromkeys(THREAD_VARIABLES, "1"), **kept}


def _given(settings: PoolSettings) -> dict[str, str]:
    return {**os.environ, **settings.environment}
