"""All workers of a pool: what they send, what their ends mean, which of them have to go.

Every report and every death passes here and becomes outcomes; whoever wants a worker stopped or killed says so here,
so that the books of the slots stay true. Runs in the parent's loop and never blocks.
"""

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from pgsched.model import Outcome, OutcomeKind
from pgsched.pool import records, sizing, wire
from pgsched.pool.alarm import Alarm
from pgsched.pool.collector import Collector
from pgsched.pool.deaths import Death, OutOfMemory
from pgsched.pool.dispatching import Dispatcher
from pgsched.pool.enforcing import SAMPLE, Enforcer
from pgsched.pool.filling import Filler
from pgsched.pool.process import Process
from pgsched.pool.retiring import RELOADED, retire
from pgsched.pool.settings import PoolSettings
from pgsched.pool.slot import Ended, Slot
from pgsched.pool.stream import Sink
from pgsched.pool.usage import Usage
from pgsched.rules.states import SlotState

FRAMES: Final = 64
"""Reports read from one worker before the loop's other duties have their turn."""
TICK: Final = 1.0
"""Seconds between two turns at most."""
PROTOCOL: Final = "protocol"
_LAST_FRAMES: Final = 4096
"""More than fit into a socket: enough to read a dead worker's dry, whoever else may write to it."""


class Workers:
    """The slots and everything that happens to them.

    :param on_change: called after each outcome and each death.
    """

    def __init__(
        self,
        settings: PoolSettings,
        on_outcomes: Callable[[list[Ended]], None],
        on_event: Callable[[str, dict[str, Any]], None],
        on_change: Callable[[], None],
    ) -> None:
        self.usage = Usage()
        self.slots = {number: Slot(number, self.usage) for number in range(settings.processes)}
        self.restarts: Counter[str] = Counter()
        """Ends of workers, by reason."""
        self.alarm = Alarm(self._ring)
        self.sink = Sink()
        self.collector = Collector(lambda: self.filler.expecting)
        self.filler = Filler(
            settings,
            self.slots,
            self.collector,
            self.sink,
            on_launched=self._launched,
            on_death=self.died,
            on_event=on_event,
            alarm=self.alarm,
        )
        self.dispatcher = Dispatcher(lambda: self.filler.task_types, on_refused=self.rest)
        self._grace = settings.grace
        self._enforcer = Enforcer(self.slots, self.look, self.stop, self.kill, settings.grace)
        self._out_of_memory = OutOfMemory()
        self._on_outcomes = on_outcomes
        self._on_event = on_event
        self._on_change = on_change
        self._looked_at = 0.0
        self._dropped = 0
        self._rolling = False
        """Whether a worker may have another app than the one in service."""

    def staged(self, slot: Slot) -> None:
        """A task was put among those that the next flush sends to the slot."""
        if len(slot.sent) == 1:
            self._mind_limits(slot)
        self.dispatcher.staged(slot)

    def rest(self, slot: Slot) -> None:
        """The slot may have nothing to do now: offer it, or let its worker go."""
        if not self.dispatcher.offer(slot) and not slot.sent:
            self._part(slot)

    def _part(self, slot: Slot) -> None:
        if slot.process is None or slot.process.ended:
            return
        if slot.state is SlotState.KILLING:
            # It was signalled for a task that has ended: whatever the signal did to it must not meet another task.
            self.kill(slot, str(slot.reason))
        elif slot.state is SlotState.IDLE:
            if slot.reason is None:
                self.retire()
            else:
                slot.dismiss(slot.reason, time.monotonic() + self._grace)
                self.alarm.by(slot.kill_at)

    def retire(self) -> None:
        """Let worn workers go."""
        for slot in retire(self.slots.values(), time.monotonic()):
            self.rest(slot)

    def resize(self, processes: int) -> None:
        """Add slots, or close those that are too many: each goes when its running task has ended."""
        for slot in sizing.closed(self.slots.values(), processes):
            self._close(slot)
        for slot in sizing.opened(self.slots, processes, lambda number: Slot(number, self.usage)):
            self.slots[slot.number] = slot
            self.rest(slot)
        self.filler.turn(time.monotonic())
        self._on_change()

    def _close(self, slot: Slot) -> None:
        slot.surplus = True
        waiting = slot.take_back()
        if slot.state is SlotState.BOOTING:
            self.kill(slot, sizing.RESIZED)
        elif slot.reason is None:
            slot.reason = sizing.RESIZED
            self.rest(slot)
        if slot.state is SlotState.EMPTY:
            del self.slots[slot.number]
        self.emit((sent.claim, Outcome(OutcomeKind.INTERRUPTED, 0.0)) for sent in waiting)

    def roll(self) -> None:
        """Another app is in service: replace every worker that has the old one, as each comes to rest."""
        for slot in self.slots.values():
            if slot.knows is not self.filler.task_types:
                slot.worn = slot.worn or RELOADED
        self._rolling = True
        self.retire()
        self._mind_roll()

    def _mind_roll(self) -> None:
        newest, absent = self.filler.task_types, (SlotState.EMPTY, SlotState.BOOTING)
        if self._rolling and all(slot.knows is newest and slot.state not in absent for slot in self.slots.values()):
            self._rolling = False
            self._on_event("reload_finished", {})

    def stop(self, slot: Slot, kind: OutcomeKind, text: str, grace: float) -> None:
        """Tell the running task to stop, and send SIGKILL when it has not within ``grace`` seconds."""
        waiting = slot.take_back()
        if slot.running is not None:
            slot.order_stop(kind, text, time.monotonic() + grace)
            self.alarm.by(slot.kill_at)
        self.rest(slot)
        self.emit((sent.claim, Outcome(OutcomeKind.INTERRUPTED, 0.0)) for sent in waiting)

    def kill(self, slot: Slot, reason: str, kind: OutcomeKind = OutcomeKind.CRASHED, text: str | None = None) -> None:
        """Kill a worker; see :meth:`Slot.kill`. What becomes of its tasks is told when it is dead."""
        self.dispatcher.withdraw(slot)
        if slot.process is not None and slot.process.pid is None:
            self.filler.give_up(slot, reason)
        else:
            self.collector.expect_deaths(slot.kill(reason, time.monotonic(), kind, text))

    def died(self, slot: Slot, process: Process, death: Death) -> None:
        """A worker has ended: its last reports count, then everything else that it had gets an outcome."""
        if process.pid is not None:
            self.filler.gone(process.pid)
        if slot.process is not process:
            return
        process.ended = True
        # Those who hear of its last reports may dispatch, but not to a dead worker.
        self.dispatcher.withdraw(slot)
        self._readable(slot, process, frames=_LAST_FRAMES)
        sent = slot.tasks
        self._salvage(slot)
        # Else it was at most to leave when its task has ended.
        ours = slot.state in (SlotState.KILLING, SlotState.STOPPING)
        foreign = death.signal == signal.SIGKILL and not ours
        booting, tasks, unsent = slot.state is SlotState.BOOTING, slot.tasks, slot.tasks > sent
        now = time.monotonic()
        ended = slot.vacate(death, now, self._out_of_memory.killed(now) if foreign else False)
        crashed = [each for each in ended if each[1].pid is not None]
        reason = "crashed" if crashed and not ours else slot.reason or ("boot" if booting else "idle")
        self.restarts[reason] += 1
        self.rest(slot)
        self.emit(ended)
        fields: dict[str, Any] = {"slot": slot.number, "pid": process.pid, "reason": reason, "end": death.words}
        fields |= {"signal": death.signal, "exit_code": death.exit_code, "tasks": tasks}
        if crashed:
            claim = crashed[0][0]
            fields |= {"task_id": claim.task_id, "task_type": claim.task_type, "attempt": claim.attempt}
        self._on_event("worker_ended", fields)
        if slot.surplus:
            self.slots.pop(slot.number, None)
        # Between a task's end and its report a worker does nothing that could end it: the task has spoilt it.
        self.filler.emptied(slot, death, under_task=bool(crashed) or unsent)
        self.filler.turn(time.monotonic())
        self._mind_roll()
        self._on_change()

    def emit(self, ended: Iterable[Ended]) -> None:
        """Tell outcomes."""
        if outcomes := list(ended):
            self._on_outcomes(outcomes)
        self._on_change()

    def turn(self, now: float) -> float:
        """Converge; return when to look again, monotonic."""
        self.collector.sweep(now)
        if now - self._looked_at >= TICK:
            self._looked_at = now
            self._out_of_memory.look(now)
            self._tell_dropped()
        self.filler.turn(now)
        self.retire()
        self.alarm.by(min(self._enforcer.turn(now), now + TICK))
        return self.alarm.at

    def _ring(self) -> None:
        self.turn(time.monotonic())

    def _tell_dropped(self) -> None:
        if self.sink.dropped > self._dropped:
            self._on_event("output_dropped", {"bytes": self.sink.dropped - self._dropped})
            self._dropped = self.sink.dropped

    def _launched(self, slot: Slot, process: Process) -> None:
        process.listen(lambda: self._readable(slot, process), lambda: self._overhear(slot, process))
        self.alarm.by(slot.kill_at)

    def _overhear(self, slot: Slot, process: Process) -> None:
        if slot.process is process and not process.stream.read() and process.stream.ended:
            process.deafen()

    def _readable(self, slot: Slot, process: Process, frames: int = FRAMES) -> None:
        # First the output: what was written before a report was sent belongs to that attempt.
        before = process.stream.total
        process.stream.read()
        receive = process.sock.recv
        for _ in range(frames):
            if slot.process is not process:
                return
            try:
                frame = receive(wire.LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            try:
                self._frame(slot, process, frame, before)
            except wire.ProtocolError as error:
                self.kill(slot, PROTOCOL, text=f"the worker's socket was written to by something else: {error}")
                return

    def _frame(self, slot: Slot, process: Process, datagram: bytes, before: int) -> None:
        frame = process.parts.whole(datagram)
        if frame is None:
            return
        if frame[0] == wire.REPORTS:
            cpu_seconds, reports = records.decode_reports(frame)
            self._ended(slot, slot.take_reports(reports, cpu_seconds, time.monotonic(), before))
        elif frame[0] == wire.READY and slot.state is SlotState.BOOTING:
            if self.filler.ready(slot, wire.decode_message(frame)):
                self._on_event("worker_ready", {"slot": slot.number, "pid": process.pid})
                self.rest(slot)
                self.retire()
                self._mind_roll()
                self._on_change()
        else:
            raise wire.ProtocolError(f"frame {frame[0]} in state {slot.state}")

    def _ended(self, slot: Slot, ended: list[Ended]) -> None:
        """Tasks of a living worker are over."""
        if not ended:
            return
        if slot.worn is not None and slot.reason is None:
            self.retire()
        if slot.sent:
            self._mind_limits(slot)
        else:
            self.rest(slot)
        self.emit(ended)

    def look(self, slot: Slot) -> None:
        """Take in what the worker has done and nobody has heard yet, so that its present task is known."""
        if slot.process is not None and slot.sent:
            self._readable(slot, slot.process)
            self._salvage(slot)

    def _salvage(self, slot: Slot) -> None:
        try:
            self._ended(slot, slot.salvage(time.monotonic()))
        except wire.ProtocolError as error:
            self.kill(slot, PROTOCOL, text=f"the worker's memory was written to by something else: {error}")

    def _mind_limits(self, slot: Slot) -> None:
        if slot.deadline < self.alarm.at:
            self.alarm.by(slot.deadline)
        if slot.memory is not None:
            self.alarm.by(time.monotonic() + SAMPLE)
