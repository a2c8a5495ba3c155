"""The pool: the supervisor's door to its workers.

Takes claims, hands them to workers, and calls back with exactly one outcome for each. It knows no database and
decides nothing about tasks; what happens to workers is in ``workers.py`` and the modules beside it. Runs in the
parent's loop and never blocks.
"""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from pgsched.errors import PoolError
from pgsched.model import Claim, Outcome, OutcomeKind, TaskType
from pgsched.pool import boot, descriptors
from pgsched.pool.deaths import LOST
from pgsched.pool.settings import PoolSettings
from pgsched.pool.slot import Ended, Slot
from pgsched.pool.workers import Workers
from pgsched.rules.states import SlotState

__all__ = ["Ended", "Pool", "PoolSettings", "Running"]

END_WITHIN: Final = 10.0
"""Seconds that the end of killed workers is awaited; a process that the kernel cannot end may take longer."""
STOPPED: Final = "stopped"


class Running(NamedTuple):
    """A task that runs now."""

    claim: Claim
    slot: int
    pid: int | None
    seconds: float


class Pool:
    """A number of slots, each with a worker. Used once: started, stopped, dropped.

    :param on_outcomes: called in the loop with claims that were dispatched and not recalled, each once; may dispatch.
    :param on_event: name and fields of whatever else happens:

        * ``worker_ready`` slot, pid; ``worker_ended`` slot, pid, reason, end, signal, exit_code, tasks, and task_id,
          task_type, attempt where a task went with it. The reasons are those of :attr:`restarts`.
        * ``restart_delayed`` seconds, error; ``pool_failed`` error.
        * ``forkserver_died`` error; ``forkserver_threads`` threads; ``app_changed`` task_types.
        * ``reload_finished``: no worker has the old app any more.
        * ``output_dropped`` bytes: the parent's own standard error took no more.
    """

    def __init__(
        self,
        settings: PoolSettings,
        on_outcomes: Callable[[list[Ended]], None],
        on_event: Callable[[str, dict[str, Any]], None] = lambda name, fields: None,
    ) -> None:
        self.settings = settings
        self._changed = asyncio.Event()
        self._workers = Workers(settings, on_outcomes, on_event, self._changed.set)
        self._stopped = False

    async def start(self) -> dict[str, TaskType]:
        """Fill every slot and return the task types of the app. To be called in the main thread's loop.

        :raises AppError: the app cannot be imported; one line, and the traceback in ``details``.
        :raises PoolError: the workers cannot boot.
        """
        if boot.inside:
            raise PoolError(
                f"{self.settings.app} starts a supervisor when it is imported: "
                'put that under `if __name__ == "__main__":`, because workers import the module too'
            )
        descriptors.allow()
        if (processes := self.settings.processes) > (room := descriptors.room()):
            raise PoolError(
                f"processes {processes}: this process may have descriptors for {room}; "
                "raise `ulimit -n`, or LimitNOFILE= of the service"
            )
        self._workers.collector.open()
        # From now on one turn sets the alarm for the next.
        self._workers.turn(time.monotonic())
        try:
            await self._workers.filler.fill_all()
        except BaseException:
            await self.stop()
            raise
        return self.task_types

    @property
    def task_types(self) -> dict[str, TaskType]:
        """What the app has registered, by name; empty before the start."""
        return self._workers.filler.task_types

    @property
    def restarts(self) -> Counter[str]:
        """Ends of workers by reason: crashed, idle, boot, boot_timeout, protocol; timed_out, over_memory, cancelled,
        interrupted; max_tasks, max_memory, no_descriptors, reloaded, resized, stopped."""
        return self._workers.restarts

    def free(self) -> int:
        """Slots whose worker would start a task at once."""
        return len(self._workers.dispatcher.idle)

    def dispatch(self, claim: Claim, ahead: int, within: float = math.inf) -> bool:
        """Hand a claim to an idle worker, or else ahead of time to a busy one with little to do; False: to none now.

        It begins when :meth:`flush` is called, or earlier.

        :param ahead: how many tasks may wait in one worker behind the one that runs.
        :param within: seconds; nothing is sent ahead to a worker whose present task has run for longer.
        """
        slot = self._workers.dispatcher.choose(claim.task_type, ahead, within)
        if slot is None:
            return False
        task_type = slot.knows.get(claim.task_type)
        timeout, memory = claim.timeout, None
        if task_type is not None:
            memory = task_type.memory
            if timeout is None:
                timeout = task_type.timeout
        slot.stage(claim, math.inf if timeout is None else timeout, memory, time.monotonic(), brief=ahead > 0)
        self._workers.staged(slot)
        return True

    def flush(self) -> list[Claim]:
        """Send what was dispatched; return the claims for which there was no room after all: they have no outcome."""
        return self._workers.dispatcher.flush()

    def recall(self, slot: int | None = None) -> list[Claim]:
        """Take back what the worker of a slot, or of every slot, has not begun; these claims have no outcome."""
        claims: list[Claim] = []
        for number, each in self._workers.slots.items():
            if slot in (None, number) and (taken := each.take_back()):
                claims += [sent.claim for sent in taken]
                self._workers.rest(each)
        return claims

    def stop_task(
        self, task_id: int, kind: OutcomeKind, reason: str, *, fence: int | None = None, grace: float | None = None
    ) -> None:
        """Stop a task that was dispatched: soft signal, grace, SIGKILL to the worker's group and descendants.

        A task that no worker has begun is simply not begun. One that is unknown here is left alone; one that is being
        stopped already is killed no later than this grace says.

        :param kind: its outcome, unless it returns all the same.
        :param reason: the error that is recorded.
        :param fence: of the claim that is meant; None when the pool can have no other claim of the task.
        :param grace: seconds; None for that of the settings.
        """
        for slot in self._workers.slots.values():
            if any(sent.claim.task_id == task_id and fence in (None, sent.claim.fence) for sent in slot.sent):
                self._stop_in(slot, task_id, kind, reason, self.settings.grace if grace is None else grace)
                return

    def _stop_in(self, slot: Slot, task_id: int, kind: OutcomeKind, reason: str, grace: float) -> None:
        workers = self._workers
        workers.look(slot)
        if not slot.sent:
            return
        if slot.sent[0].claim.task_id == task_id and slot.order is not None:
            slot.kill_at = min(slot.kill_at, time.monotonic() + grace)
            workers.alarm.by(slot.kill_at)
            return
        taken = slot.take_back()
        others = [sent for sent in taken if sent.claim.task_id != task_id]
        ended = [(sent.claim, Outcome(kind, 0.0)) for sent in taken if sent.claim.task_id == task_id]
        if ended:
            # The others go back into the socket, behind whatever runs there.
            now = time.monotonic()
            for sent in others:
                slot.stage(sent.claim, sent.timeout, sent.memory, now, sent.brief)
            others = slot.flush()
        elif slot.running is not None and slot.running.claim.task_id == task_id:
            workers.stop(slot, kind, reason, grace)
        workers.rest(slot)
        workers.emit([*ended, *((sent.claim, Outcome(OutcomeKind.INTERRUPTED, 0.0)) for sent in others)])

    def running(self) -> list[Running]:
        """What runs now."""
        now = time.monotonic()
        return [
            Running(slot.running.claim, slot.number, slot.process.pid, now - slot.started)
            for slot in self._workers.slots.values()
            if slot.running is not None and slot.process is not None
        ]

    def slots(self) -> dict[str, int]:
        """How many slots are in each state."""
        counts = Counter(slot.state for slot in self._workers.slots.values())
        return {str(state): counts[state] for state in SlotState}

    def busy_seconds(self) -> dict[int, float]:
        """For how long each slot has had tasks, since the start."""
        now = time.monotonic()
        return {
            number: slot.meter.busy_seconds(now, at_work=slot.running is not None)
            for number, slot in self._workers.slots.items()
        }

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time of the workers by task type, since the start; of tasks that have ended."""
        return dict(self._workers.usage.cpu)

    def turn(self, now: float | None = None) -> float:
        """Converge: enforce limits, fill slots, collect what has ended. The pool does it by itself when it is due.

        :return: seconds until the next turn is due.
        :raises PgschedError: the pool has given up: its workers end as fast as they are started.
        """
        now = time.monotonic() if now is None else now
        due = self._workers.turn(now)
        if self._workers.filler.failure is not None:
            raise self._workers.filler.failure
        return max(due - now, 0.0)

    def resize(self, processes: int) -> None:
        """Have so many slots, or as many as there are descriptors for; the worker of one that is too many ends when its
        tasks have."""
        if processes < 1:
            raise ValueError(f"processes {processes}: must be at least 1")
        processes = min(processes, descriptors.room())
        self.settings = dataclasses.replace(self.settings, processes=processes)
        self._workers.resize(processes)

    @contextlib.asynccontextmanager
    async def reload(self) -> AsyncIterator[Callable[[], None]]:
        """Import the app anew; within, a call puts it into service: :attr:`task_types` are then the new ones.

        The workers are replaced one after the other, each between two tasks. Until then one that has the old app runs
        what both apps know, or what only the old one does, but nothing is sent to it ahead of time.

        :raises PgschedError: it cannot be imported, or, from the call, its forkserver has died. Nothing has changed.
        """
        async with self._workers.filler.reloaded() as adopt:

            def adopt_and_roll() -> None:
                adopt()
                self._workers.roll()

            yield adopt_and_roll

    async def stop(self) -> None:
        """Kill every worker and wait for their ends; what was running comes as INTERRUPTED. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        workers = self._workers
        workers.filler.close()
        # A worker whose pid is still to come could not be killed.
        await self._until(lambda: not workers.filler.expecting, 1.0)
        for slot in workers.slots.values():
            if slot.process is not None:
                workers.kill(slot, STOPPED, OutcomeKind.INTERRUPTED, "the supervisor was stopped")
        await self._until(lambda: not any(slot.process for slot in workers.slots.values()), END_WITHIN)
        for slot in list(workers.slots.values()):
            if slot.process is not None:
                workers.died(slot, slot.process, LOST)
        await workers.filler.end(1.0)
        await self._until(lambda: not workers.collector.dying, 1.0)
        workers.alarm.cancel()
        workers.collector.close()
        workers.sink.close()

    async def _until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Wait for something that callbacks of the loop bring about."""
        deadline = time.monotonic() + timeout
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left, 0.02)):
                    await self._changed.wait()
            except TimeoutError:
                # Nobody may have told us of a death: not every loop hears SIGCHLD.
                self._workers.collector.turn()
