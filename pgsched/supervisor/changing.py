"""What is changed while tasks run: the number of slots, and the app. And what our row in the database says of both.

A change of the number is made at once, a reload by and by: the app is imported beside the old one, which stays in
service when that fails. Runs in the supervisor's loop.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pgsched.config import MAX_PROCESSES, Settings
from pgsched.errors import DatabaseError, PgschedError
from pgsched.model import Claim, Identity, Retry, TaskType
from pgsched.pool.pool import Pool
from pgsched.quantities import available_cpus
from pgsched.store.store import Store
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.exchange import Exchange, LeaseLostError
from pgsched.supervisor.identity import identify
from pgsched.supervisor.observer import Observer

REST: Final = 3600.0
"""Seconds between two looks of an announcer that nobody wakes."""
_DEFAULT: Final = Retry()
"""For claims of types that only another supervisor knows: it died, and we have reaped."""


class Changes:
    """What was asked for, and what has come of it.

    :param give_back: releases claims that cannot be executed here any more.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        backlog: Backlog,
        observer: Observer,
        *,
        version: str,
        give_back: Callable[[list[Claim]], None],
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._backlog = backlog
        self._observer = observer
        self._version = version
        self._give_back = give_back
        self._wanted = settings.processes
        self._open = False
        self._reload_asked = asyncio.Event()
        self._retries: dict[str, Retry] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when :attr:`identity` has changed."""
        self.identity = Identity(host="", boot_id="", pid_namespace=0, pid=0, started_ticks=0, processes=0)
        """What our row should say; nobody before :meth:`begin`."""
        self.told = self.identity
        """What it says."""
        self.taken: int | None = None
        """The number that was asked for there and is not answered yet."""

    def begin(self, task_types: Mapping[str, TaskType]) -> None:
        """The pool has started, with these types."""
        settings, types = self._settings, tuple(sorted(task_types))
        self.identity = identify(settings.processes, settings.queues, types, self._version, settings.partitions)
        self._know(task_types)

    def retry(self, task_type: str) -> Retry:
        """How tasks of a type are tried again; also of one that the app does not have any more."""
        return self._retries.get(task_type, _DEFAULT)

    def reload(self) -> None:
        """Ask for the app anew; once is as good as often. Safe in a signal callback of the loop."""
        self._reload_asked.set()

    def step(self, by: int) -> None:
        """Ask for so many slots more, or fewer. Safe in a signal callback of the loop."""
        self.resize(min(max(self._wanted + by, 1), MAX_PROCESSES))

    def resize(self, processes: int) -> None:
        """Ask for so many slots. Those that are too many end with their tasks."""
        self._wanted = processes
        if self._open:
            self._resize()

    def take(self, wanted: int) -> None:
        """Somebody asks for so many slots by our row; what it says later is the answer."""
        if self._open:
            self.resize(wanted)
            self.taken = wanted
            self.on_change()

    async def run(self, exchange: Exchange) -> None:
        """Do what is asked until cancelled; what was asked before is done first."""
        self._open = True
        try:
            self._resize()
            while True:
                await self._reload_asked.wait()
                self._reload_asked.clear()
                await self._reload(exchange)
        finally:
            self._open = False

    def _resize(self) -> None:
        before, wanted = self._pool.settings.processes, self._wanted
        if before == wanted:
            return
        self._pool.resize(wanted)
        self._wanted = processes = self._pool.settings.processes
        self._changed(processes=processes)
        crowded, short = processes > max(before, cpus := available_cpus()), processes < wanted
        self._observer.event(
            "resized",
            logging.WARNING if crowded or short else logging.INFO,
            processes=processes,
            before=before,
            cpus=cpus if crowded else None,
            too_many=wanted if short else None,
        )

    async def _reload(self, exchange: Exchange) -> None:
        self._observer.event("reloading", logging.INFO)
        before = set(self._pool.task_types)
        try:
            async with self._pool.reload() as adopt:
                await self._adopt(exchange, adopt)
        except PgschedError as error:
            self._observer.event("reload_failed", logging.ERROR, error=str(error), traceback=error.details or None)
            return
        now = set(self._pool.task_types)
        self._observer.event(
            "reloaded",
            logging.INFO,
            task_types=sorted(now),
            added=sorted(now - before) or None,
            removed=sorted(before - now) or None,
        )

    async def _adopt(self, exchange: Exchange, adopt: Callable[[], None]) -> None:
        """Put another app into service while no claim is under way: it would bring what nobody here can execute."""
        adopted = False
        while not adopted:
            # What became of a claim that was, the exchange's next turn meets too.
            with suppress(DatabaseError, LeaseLostError):
                async with exchange.quiet:
                    adopt()
                    self._swap(exchange)
                    adopted = True

    def _swap(self, exchange: Exchange) -> None:
        """Another app is in service: claim its types, and give back what it does not have."""
        task_types = self._pool.task_types
        self._know(task_types)
        exchange.serve(sorted(task_types))
        self._backlog.put_back(self._pool.recall())
        self._give_back(self._backlog.discard(lambda claim: claim.task_type not in task_types))
        self._changed(task_types=tuple(sorted(task_types)))

    def _know(self, task_types: Mapping[str, TaskType]) -> None:
        self._retries |= {name: task_type.retry for name, task_type in task_types.items()}

    def _changed(self, **fields: object) -> None:
        self.identity = dataclasses.replace(self.identity, **fields)  # type: ignore[arg-type]
        self.on_change()


class Announcer:
    """Keeps our row true under one lease."""

    def __init__(self, store: Store, changes: Changes, *, supervisor_id: int) -> None:
        self._store = store
        self._changes = changes
        self._supervisor_id = supervisor_id

    async def turn(self) -> float:
        """Say what has changed since it was last said."""
        changes = self._changes
        while changes.identity != changes.told or changes.taken is not None:
            identity, taken = changes.identity, changes.taken
            await self._store.announce(self._supervisor_id, identity, taken)
            changes.told = identity
            if changes.taken == taken:
                changes.taken = None
        return REST
