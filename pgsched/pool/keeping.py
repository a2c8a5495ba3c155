"""Keeps one forkserver alive: starts it, waits for its import, starts another when it dies.

Workers that run are not touched by that. Runs in the parent, in the loop; never blocks.
"""

import asyncio
import math
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

from pgsched.errors import AppError, PgschedError, PoolError
from pgsched.pool.boot import CUT, CUT_WORDS
from pgsched.pool.collector import Collector
from pgsched.pool.deaths import Death
from pgsched.pool.launcher import Forked, Launcher, Loaded, NotLoaded
from pgsched.pool.settings import PoolSettings
from pgsched.pool.stream import Sink
from pgsched.pool.wire import ProtocolError

Event = Callable[[str, dict[str, Any]], None]


def import_overdue(settings: PoolSettings) -> PoolError:
    """The error of a forkserver whose import of the app takes too long."""
    return PoolError(f"cannot import {settings.app}: the boot timeout of {settings.boot_timeout:g} s is over")


class Owner(Protocol):
    """Who uses a keeper."""

    def groups(self) -> list[int]:
        """The process groups of the workers that live."""

    def loaded(self, message: Loaded) -> None:
        """Workers can be asked for."""

    def forked(self, message: Forked) -> None:
        """The answer to a request."""

    def forsaken(self) -> None:
        """Requests without an answer will never have one."""

    def count(self, now: float, lived: float, killed: bool, error: PgschedError) -> float:
        """Something died that should live; return the seconds until it may be started again."""


class Keeper:
    """The forkserver's guardian.

    :param version: of pgsched, which every forkserver must have; None: what the first one has. Another one's workers
        might not understand this supervisor.
    """

    def __init__(
        self,
        settings: PoolSettings,
        collector: Collector,
        sink: Sink,
        owner: Owner,
        on_event: Event,
        version: str | None = None,
    ) -> None:
        self._settings = settings
        self._collector = collector
        self._sink = sink
        self._owner = owner
        self._on_event = on_event
        self.version = version
        self._launcher: Launcher | None = None
        self._loaded_at: float | None = None
        self._load_by = math.inf
        self._due = 0.0
        self._error: PgschedError | None = None
        """What the present forkserver has said, or we of it, before it died."""
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether workers can be asked for."""
        return self._loaded_at is not None

    @property
    def pid(self) -> int | None:
        """Of the forkserver, if there is one."""
        return None if self._launcher is None else self._launcher.pid

    def turn(self, now: float) -> float:
        """Start what is due; return when to look again, monotonic."""
        if self._closed:
            return math.inf
        if self._launcher is None:
            if now >= self._due:
                self._launch(now)
            return self._due if self._launcher is None else self._load_by
        if now >= self._load_by:
            self._load_by = math.inf
            limit = self._settings.boot_timeout
            late = PoolError(f"the forkserver was not ready after the boot timeout of {limit:g} s")
            self.kill(late if self._settings.start_method == "spawn" else import_overdue(self._settings))
        return self._load_by

    def fork(self, number: int, ends: list[int]) -> bool:
        """Ask for a worker with these descriptors; False: not now."""
        return self._launcher is not None and self.ready and self._launcher.fork(number, ends)

    def gone(self, pid: int) -> None:
        """A worker has been collected."""
        if self._launcher is not None:
            self._launcher.gone(pid)

    def kill(self, error: PgschedError) -> None:
        """The forkserver does not do its work: have another.

        :param error: what is told of its end.
        """
        if self._launcher is not None:
            self._error = error
            self._launcher.kill()

    def take_over(self, owner: Owner, on_event: Event) -> None:
        """Serve somebody else from now on, who has workers that another forkserver has made.

        :raises PgschedError: the forkserver has died meanwhile.
        """
        if self._launcher is None or not self.ready or not self._launcher.take_over(owner.groups()):
            raise self._error or PoolError("the forkserver was lost before it was needed")
        self._owner = owner
        self._on_event = on_event

    def retire(self) -> None:
        """Kill the forkserver, for another has its place; what it has made stays, and its end is nobody's concern."""
        self._closed = True
        if self._launcher is not None:
            self._launcher.kill()

    async def end(self, within: float) -> None:
        """End the forkserver for good, politely for so many seconds, and wait for that."""
        self._closed = True
        if self._launcher is not None and self.ready:
            self._launcher.hang_up()
            await self._until_gone(within)
        if self._launcher is not None:
            self._launcher.kill()
            await self._until_gone(within)
        if self._launcher is not None:
            self._drop(self._launcher)

    async def _until_gone(self, within: float) -> None:
        deadline = time.monotonic() + within
        while self._launcher is not None and time.monotonic() < deadline:
            self._collector.turn()
            await asyncio.sleep(0.005)

    def _launch(self, now: float) -> None:
        try:
            launcher = Launcher(self._settings, self._sink, self._owner.groups())
        except OSError as error:
            self._due = now + self._owner.count(now, 0.0, False, PoolError(f"cannot start the forkserver: {error}"))
            return
        self._launcher = launcher
        self._load_by = now + self._settings.boot_timeout
        self._error = None
        loop = asyncio.get_running_loop()
        loop.add_reader(launcher.control, self._listen, launcher)
        loop.add_reader(launcher.stream.descriptor, self._overhear, launcher)
        self._collector.watch(launcher.pid, lambda death: self._died(launcher, death))

    def _overhear(self, launcher: Launcher) -> None:
        if self._launcher is launcher and not launcher.stream.read() and launcher.stream.ended:
            asyncio.get_running_loop().remove_reader(launcher.stream.descriptor)

    def _listen(self, launcher: Launcher) -> None:
        if self._launcher is not launcher:
            return
        try:
            messages = launcher.messages()
        except ProtocolError as error:
            self.kill(PoolError(f"the forkserver's socket was written to by something else: {error}"))
            return
        for message in messages:
            match message:
                case Loaded() if self.version in (None, message.version):
                    self._loaded(message)
                case Loaded():
                    now = f"pgsched {message.version} is installed now"
                    self.kill(PoolError(f"{now}, and this supervisor is {self.version}: restart it"))
                case NotLoaded():
                    self._error = app_error(message.error, message.details)
                case Forked():
                    self._owner.forked(message)

    def _loaded(self, message: Loaded) -> None:
        self.version = message.version
        self._loaded_at = time.monotonic()
        self._load_by = math.inf
        if message.threads > 1:
            # A lock that one of them holds is locked for ever in what is forked.
            self._on_event("forkserver_threads", {"threads": message.threads})
        self._owner.loaded(message)

    def _died(self, launcher: Launcher, death: Death) -> None:
        if self._launcher is not launcher:
            return
        self._listen(launcher)
        now = time.monotonic()
        lived = 0.0 if self._loaded_at is None else now - self._loaded_at
        error = told = self._error
        if error is None:
            # Where it was killed, the app is not to blame; where it left by itself, only the app can have done it.
            foreign = self.ready or death.signal == signal.SIGKILL
            text = f"the forkserver was lost: {death.words}"
            words = CUT_WORDS if death.exit_code == CUT else death.words
            error = PoolError(text) if foreign else AppError(f"cannot import {self._settings.app}: {words}")
        # One that has served is no reason to give up, whoever has killed it.
        killed = death.signal == signal.SIGKILL and (self._error is None or self.ready)
        self._drop(launcher)
        if not self._closed:
            self._owner.forsaken()
            if told is None:
                # What it has said itself is told by whoever counts it.
                self._on_event("forkserver_died", {"error": str(error)})
            self._due = now + self._owner.count(now, lived, killed, error)

    def _drop(self, launcher: Launcher) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(launcher.control)
        loop.remove_reader(launcher.stream.descriptor)
        launcher.close()
        self._launcher = None
        self._loaded_at = None
        self._load_by = math.inf


def app_error(line: str, details: str) -> AppError:
    """An error with the traceback of the user's module kept beside it."""
    error = AppError(line)
    error.details = details
    return error
