"""Collects children that have ended: workers, the forkserver, and orphans that the kernel gives to the supervisor.

Woken by SIGCHLD where it may be (in the main thread), and by every turn of the pool: a signal that was missed only
costs time. It collects the pids that it was told of; any other child gets a second to be collected by whoever
started it, and is then taken for an orphan. Runs in the parent, in the loop.
"""

import asyncio
import os
import signal
from collections.abc import Callable

from pgsched.pool import limits
from pgsched.pool.boot import become_subreaper
from pgsched.pool.deaths import LOST, Death, collect

ORPHAN_AFTER = 1.0
"""Seconds for which a strange child may stay uncollected."""


class Collector:
    """The parent's children.

    :param expecting: whether the pid of a child is not known yet.
    """

    def __init__(self, expecting: Callable[[], bool]) -> None:
        self._expecting = expecting
        self._watched: dict[int, Callable[[Death], None]] = {}
        self._dying: set[int] = set()
        self._strangers: dict[int, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Become the parent of orphans, and listen for SIGCHLD in the running loop."""
        become_subreaper()
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGCHLD, self.turn)
        except (ValueError, RuntimeError):
            # Not the main thread: the turns must do.
            return
        self._loop = loop

    def close(self) -> None:
        """Stop listening; orphans go to init again."""
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            self._loop = None
        become_subreaper(False)

    def watch(self, pid: int, on_death: Callable[[Death], None]) -> None:
        """Call back, once, when this child has ended; its process group is killed before."""
        self._watched[pid] = on_death
        self._try(pid)

    def expect_deaths(self, pids: list[int]) -> None:
        """These were killed and may become our children."""
        self._dying.update(pids)

    @property
    def dying(self) -> int:
        """How many of them are not gone yet."""
        return len(self._dying)

    def turn(self) -> None:
        """Collect what has ended."""
        for pid in list(self._watched):
            self._try(pid)
        for pid in list(self._dying):
            self._try_dying(pid)

    def sweep(self, now: float) -> None:
        """Collect orphans too; to be called every second or so."""
        self.turn()
        # A child whose pid we do not know yet might be a worker.
        if self._expecting() or not _any_ended():
            return
        ended = [pid for pid in limits.children(os.getpid()) if pid not in self._watched and _is_zombie(pid)]
        self._strangers = {pid: self._strangers.get(pid, now) for pid in ended}
        for pid, since in list(self._strangers.items()):
            if now - since >= ORPHAN_AFTER:
                del self._strangers[pid]
                _collect_quietly(pid)

    def _try(self, pid: int) -> None:
        try:
            if not _has_ended(pid):
                return
            # While the leader is not collected, nobody else can have its number.
            limits.kill_group(pid)
            death = collect(pid) or LOST
        except ChildProcessError:
            death = LOST
        on_death = self._watched.pop(pid, None)
        if on_death is not None:
            on_death(death)

    def _try_dying(self, pid: int) -> None:
        try:
            if collect(pid) is None:
                return
        except ChildProcessError:
            # Not ours (yet): its own parent has not ended. Where it is gone there is nothing to collect.
            if limits.entry(pid) is not None:
                return
        self._dying.discard(pid)


def _any_ended() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _has_ended(pid: int) -> bool:
    """Whether this child is a zombie.

    :raises ChildProcessError: it is no child of ours.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_zombie(pid: int) -> bool:
    found = limits.entry(pid)
    return found is not None and found.state == "Z"


def _collect_quietly(pid: int) -> None:
    try:
        collect(pid)
    except ChildProcessError:
        return
