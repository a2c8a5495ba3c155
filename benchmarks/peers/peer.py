"""What the comparison asks of a peer, and how worker processes that belong to one are run.

An adapter is a module ``with_NAME`` that holds a subclass of Peer, and whatever the peer's own command line imports in
a worker. Importing it fails where the library is not installed.
"""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, ClassVar

from benchmarks.peers.place import ROOT, Place
from pgsched.pool.limits import entry

Check = Callable[[], None]
"""Raises RuntimeError when the workers have ended by themselves."""


class Peer(ABC):
    """A task queue whose tasks are those of ``work``, by name."""

    backlog: ClassVar[int]
    """So many no-ops that draining them takes a few seconds."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def prepare(self) -> None:
        """Make the tables, and whatever else has to exist before a task is enqueued."""

    @abstractmethod
    def enqueue(self, name: str, count: int) -> None:
        """Enqueue so many tasks in the fastest way that the library has."""

    @abstractmethod
    def enqueue_one(self, name: str) -> None:
        """Enqueue one task; when this returns, the task is committed."""

    @abstractmethod
    def busy(self) -> bool:
        """Whether anything is queued or running, as the queue itself sees it."""

    @abstractmethod
    def commands(self, short: bool) -> list[list[str]]:
        """The workers' command lines, with the settings that are documented as best for short or for long tasks."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    @contextmanager
    def workers(self, short: bool) -> Iterator[Check]:
        """Run the workers, and kill them afterwards: nothing that is measured comes later."""
        with processes(self.commands(short), self.place.environment, self.place.directory / "log") as check:
            yield check


@contextmanager
def processes(commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path) -> Iterator[Check]:
    """Run commands side by side, each in a session of its own; kill all that is in it afterwards."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as output:
            for command in commands:
                running += [_start(command, environment, output)]

        def check() -> None:
            for process in running:
                if process.poll() is not None:
                    end = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"a worker ended with code {process.returncode}: {end}")

        yield check
    finally:
        # Their sessions and not their groups, because RQ's worker gives every task's process a group of its own.
        _kill_sessions({process.pid for process in running})
        for process in running:
            process.wait()


def _kill_sessions(sessions: set[int]) -> None:
    """Kill whatever belongs to these sessions, until nothing is left that could start anything."""
    # A session's number is not given away while its first process has not been waited for.
    while left := [each.pid for each in map(entry, _pids()) if each and each.session in sessions and each.state != "Z"]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _start(command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
