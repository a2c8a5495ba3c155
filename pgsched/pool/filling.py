"""Keeps the slots filled: a worker for each, again after each end, but not too fast.

A worker that died under a task is replaced at once: the task pays for it. One that cannot boot, or that leaves while
it is idle, is replaced after growing delays (``rules/restart``), until the pool gives up. Workers that are worn are
replaced a few at a time. Runs in the parent, in the loop; a turn converges to the wanted state, so a missed event only
costs time.
"""

import asyncio
import contextlib
import itertools
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from pgsched.errors import AppError, PgschedError, PoolError
from pgsched.model import TaskType
from pgsched.pool.alarm import Alarm
from pgsched.pool.boot import CUT, CUT_WORDS, read_tasks
from pgsched.pool.collector import Collector
from pgsched.pool.deaths import Death
from pgsched.pool.enforcing import BOOT_TIMEOUT
from pgsched.pool.keeping import Event, Keeper, app_error
from pgsched.pool.launcher import Forked, Loaded, secrets
from pgsched.pool.process import Process
from pgsched.pool.reloading import FORKSERVER, Trial
from pgsched.pool.settings import PoolSettings
from pgsched.pool.slot import Slot
from pgsched.pool.stream import Sink
from pgsched.pool.wire import ProtocolError
from pgsched.rules.restart import GiveUp, Intensity
from pgsched.rules.states import SlotState

_RETRY_FORK: Final = 0.02
"""Seconds until a request that the forkserver had no room for is made again."""


class Filler:
    """Decides when a slot gets a worker.

    :param on_launched: a worker is on its way.
    :param on_death: a worker has ended.
    """

    def __init__(
        self,
        settings: PoolSettings,
        slots: Mapping[int, Slot],
        collector: Collector,
        sink: Sink,
        *,
        on_launched: Callable[[Slot, Process], None],
        on_death: Callable[[Slot, Process, Death], None],
        on_event: Event,
        alarm: Alarm,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._collector = collector
        self._sink = sink
        self._on_launched = on_launched
        self._on_death = on_death
        self._on_event = on_event
        self._alarm = alarm
        self._intensity = Intensity()
        self._keeper = Keeper(settings, collector, sink, self, on_event)
        self._others: list[Keeper] = []
        """Of forkservers that are not in service yet, or not any more."""
        self._pending: dict[int, tuple[Slot, Process]] = {}
        self._numbers = itertools.count(1)
        self._first: asyncio.Future[None] | None = None
        self._errors: dict[int, PgschedError] = {}
        """By slot: what a worker that could not boot has said."""
        self._open = False
        self.task_types: dict[str, TaskType] = {}
        """Of the app in service; another mapping for each time that it was imported anew."""
        self.failure: PgschedError | None = None
        """Why the pool has given up."""

    async def fill_all(self) -> None:
        """Fill every slot for the first time.

        :raises PgschedError: one cannot be filled.
        """
        self._open = True
        self._first = asyncio.get_running_loop().create_future()
        self.turn(time.monotonic())
        try:
            await self._first
        finally:
            self._first = None

    @property
    def expecting(self) -> bool:
        """Whether the forkserver owes us a pid."""
        return bool(self._pending)

    def turn(self, now: float) -> None:
        """Start what is due, and set the alarm for the rest."""
        if not self._open or self.failure is not None:
            return
        following = self._keeper.turn(now)
        if self._keeper.ready:
            for slot in self._slots.values():
                if slot.state is SlotState.EMPTY and slot.due <= now:
                    self._fill(slot, now)
                if slot.state is SlotState.EMPTY:
                    following = min(following, slot.due)
        self._alarm.by(following)

    def ready(self, slot: Slot, message: Any) -> bool:
        """A worker says that it is ready, or why it is not.

        :raises ProtocolError: it says neither.
        """
        try:
            if "error" in message:
                self._errors[slot.number] = app_error(message["error"], message["details"])
                return False
            self._learn(message["task_types"], slot.knows)
            slot.booted(time.monotonic(), float(message["cpu_seconds"]))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ProtocolError(f"broken message: {error!r}") from error
        self._errors.pop(slot.number, None)
        if self._first is not None and not self._first.done() and all(each.ready for each in self._slots.values()):
            self._first.set_result(None)
        return True

    def give_up(self, slot: Slot, reason: str) -> None:
        """Wait no longer for a worker whose pid the forkserver still owes us; if it is born, it finds nobody there."""
        slot.abandon()
        slot.due = time.monotonic()
        if reason == BOOT_TIMEOUT:
            limit = self._settings.boot_timeout
            self._keeper.kill(PoolError(f"the forkserver did not fork within the boot timeout of {limit:g} s"))

    def emptied(self, slot: Slot, death: Death, *, under_task: bool) -> None:
        """A slot has lost its worker: decide when it gets another."""
        now = time.monotonic()
        slot.due = now
        lived = now - slot.ready if slot.ready else 0.0
        planned = slot.reason is not None and slot.reason != BOOT_TIMEOUT
        if under_task or planned or not self._open:
            return
        killed = death.signal == signal.SIGKILL and slot.reason is None
        error = self._errors.pop(slot.number, None)
        if error is None:
            when = "while it was idle" if slot.ready else "before it was ready"
            if slot.reason == BOOT_TIMEOUT:
                when = f"because it was not ready after the boot timeout of {self._settings.boot_timeout:g} s"
            was = "was " if death.signal is not None else ""
            error = PoolError(f"the worker {was}{death.words} {when}")
            if death.exit_code == CUT and not slot.ready:
                error = AppError(f"cannot import {self._settings.app}: {CUT_WORDS}")
        slot.due = now + self.count(now, lived, killed, error)

    def gone(self, pid: int) -> None:
        """A worker has been collected."""
        self._keeper.gone(pid)

    @contextlib.asynccontextmanager
    async def reloaded(self) -> AsyncIterator[Callable[[], None]]:
        """Import the app anew; within, a call puts it into service: every worker that is born from then on has it.

        :raises PgschedError: it cannot be imported, or, from the call, its forkserver has died. Nothing has changed.
        """
        trial = Trial(self._settings, self._collector, self._sink, self._keeper.version)
        self._others = [*(keeper for keeper in self._others if keeper.pid is not None), trial.keeper]
        try:
            task_types = await trial.load()
            yield lambda: self._adopt(trial, task_types)
        finally:
            if trial.keeper is not self._keeper:
                trial.keeper.retire()

    def _adopt(self, trial: Trial, task_types: dict[str, TaskType]) -> None:
        if self._settings.start_method == FORKSERVER:
            trial.keeper.take_over(self, self._on_event)
            self._keeper.retire()
            self._others = [*(keeper for keeper in self._others if keeper is not trial.keeper), self._keeper]
            self._keeper = trial.keeper
            for name, fields in trial.events:
                self._on_event(name, fields)
            # Those that it owes us would have the old app.
            self.forsaken()
        self.task_types = task_types
        self.turn(time.monotonic())

    def close(self) -> None:
        """Fill nothing more."""
        self._open = False

    async def end(self, within: float) -> None:
        """End the forkserver."""
        self.close()
        for keeper in (self._keeper, *self._others):
            await keeper.end(within)

    def _fill(self, slot: Slot, now: float) -> None:
        try:
            process = Process(self._sink)
        except OSError as error:
            slot.due = now + self._lack(now, PoolError(f"cannot start a worker: {error}"))
            return
        number = next(self._numbers)
        if not self._keeper.fork(number, process.ends()):
            process.close()
            slot.due = now + _RETRY_FORK
            return
        process.launched()
        self._pending[number] = (slot, process)
        slot.fill(process, self._settings.max_tasks_per_worker or math.inf)
        slot.knows = self.task_types
        slot.kill_at = now + self._settings.boot_timeout
        self._on_launched(slot, process)

    def _learn(self, described: list[dict[str, Any]], known: dict[str, TaskType]) -> None:
        found = read_tasks(described)
        if not known:
            known.update(found)
        elif found != known:
            # The module has changed on disk; what the supervisor claims stays as it was until it is told to reload.
            self._on_event("app_changed", {"task_types": sorted(found)})

    # What a keeper tells its owner (pgsched.pool.keeping.Owner)

    def groups(self) -> list[int]:
        """The process groups of the workers that live."""
        return [slot.process.pid for slot in self._slots.values() if slot.process and slot.process.pid]

    def loaded(self, message: Loaded) -> None:
        """The forkserver can be asked for workers."""
        if message.task_types is not None:
            self._learn(message.task_types, self.task_types)
        self.turn(time.monotonic())

    def forked(self, message: Forked) -> None:
        """The answer to a request: a pid, or why there is none."""
        pending = self._pending.pop(message.number, None)
        # None: another forkserver came into service before this answer was read.
        if pending is None or pending[0].process is not pending[1]:
            if message.pid is not None:
                # It ends when it finds its socket closed.
                late = message.pid
                self._collector.watch(late, lambda _death: self.gone(late))
            return
        slot, process = pending
        if message.pid is None:
            slot.abandon()
            now = time.monotonic()
            slot.due = now + self._lack(now, PoolError(f"cannot fork a worker: {message.error}"))
            return
        process.pid = message.pid
        process.boot(self._told(slot))
        self._collector.watch(message.pid, lambda death: self._on_death(slot, process, death))

    def forsaken(self) -> None:
        """The forkserver is gone, and with it every request that it has not answered."""
        pending, self._pending = self._pending, {}
        for slot, process in pending.values():
            if slot.process is process:
                # The forkserver's end is counted, and this is the same misfortune.
                slot.abandon()
                slot.due = time.monotonic()

    def _lack(self, now: float, error: PgschedError) -> float:
        """The host has no room for another worker; while there are others, that is no reason to end them."""
        at_work = any(slot.state in (SlotState.IDLE, SlotState.BUSY) for slot in self._slots.values())
        return self.count(now, 0.0, at_work, error)

    def count(self, now: float, lived: float, killed: bool, error: PgschedError) -> float:
        """Count an end that no task answers for; return the seconds until the next attempt."""
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            # Whoever starts us gives up: there is no second try of which anybody is to be told.
            self.close()
            return math.inf
        if self.failure is not None:
            return math.inf
        answer = self._intensity.died(now, lived, killed)
        if isinstance(answer, GiveUp):
            self.failure = PoolError(f"workers end as fast as they are started ({answer.deaths} times): {error}")
            self._on_event("pool_failed", {"error": str(self.failure)})
            return math.inf
        if self._open:
            self._alarm.by(now + answer.seconds)
            self._on_event("restart_delayed", {"seconds": round(answer.seconds, 3), "error": str(error)})
        return answer.seconds

    def _told(self, slot: Slot) -> dict[str, Any]:
        settings = self._settings
        return {
            "supervisor": os.getpid(),
            "slot": slot.number,
            "app": settings.app,
            "dsn": settings.dsn,
            "secrets": secrets(settings),
            "preparation": settings.preparation,
            "recorder": settings.recorder,
            "result_limit": settings.result_limit,
            "max_memory": settings.max_memory_per_worker,
        }
