"""A slot: the place of one worker, what was sent to it, and what is known of the attempt that runs.

The worker's start of a task is inferred: it takes one frame at a time, so the first of those that it has not reported
is the one that runs, since it was sent to an idle worker or since the report before was read. Every claim sent leaves
the slot once: reported, taken back, or with the worker's death. Decides nothing about when. Runs in the parent.
"""

import math
from collections import deque
from itertools import islice, zip_longest
from typing import Final

from pgsched.model import Claim, Outcome, OutcomeKind, TaskType
from pgsched.pool import records, wire
from pgsched.pool.deaths import Death
from pgsched.pool.outcomes import died, reported
from pgsched.pool.process import Process
from pgsched.pool.runner import SOFT_SIGNAL
from pgsched.pool.sent import Order, Sent
from pgsched.pool.usage import Meter, Usage
from pgsched.rules.states import SLOT, SlotState, advance

Ended = tuple[Claim, Outcome]
STAGED: Final = 16
"""Runs to a frame: a small part of what may wait in a worker, so that it does not run dry between two."""
STAGED_SIZE: Final = 32 * 1024
"""Bytes of runs that are not kept back for others to travel with them."""
MAX_MEMORY: Final = "max_memory"
"""Why a worker is worn that has grown too large."""
NO_DESCRIPTORS: Final = "no_descriptors"
"""Why one is worn whose tasks have left so many files open that it can open nothing more."""


class Slot:
    """One of the pool's places, numbered from 0."""

    def __init__(self, number: int, usage: Usage | None = None) -> None:
        self.number = number
        self.state = SlotState.EMPTY
        self.process: Process | None = None
        self.sent: deque[Sent] = deque()
        """Not reported yet; the first one runs."""
        self.started = 0.0
        """When it began, monotonic."""
        self.deadline = math.inf
        """When its time is over."""
        self.memory: int | None = None
        """Its limit in bytes."""
        self.order: Order | None = None
        """The stop that it was asked for."""
        self.kill_at = math.inf
        """When SIGKILL follows, whatever the state."""
        self.killed_at = math.inf
        """When SIGKILL was first sent to its worker."""
        self.due = 0.0
        """EMPTY: when to fill it."""
        self.ready = 0.0
        """When its worker was ready; 0 before."""
        self.reason: str | None = None
        """Why we end its worker; None: we do not."""
        self.worn: str | None = None
        """Why its worker should be replaced when there is an opportunity."""
        self.budget: float = math.inf
        """Tasks that may still be sent to its worker."""
        self.knows: dict[str, TaskType] = {}
        """The task types of its worker's app."""
        self.surplus = False
        """Whether it goes with its worker, because the pool is to be smaller."""
        self.tasks = 0
        """Reports that its worker has sent."""
        self._sequence = 0
        self._staged: list[bytes] = []
        """Runs that the next flush sends: the last ones of ``sent``."""
        self._staged_size = 0
        self.full = False
        """Whether the worker's socket had no room; until it reports."""
        self._salvaged: set[int] = set()
        """Numbers of reports that were read from the worker's memory, and will come by the socket too."""
        self._output_from = 0
        self.meter = Meter(number, usage or Usage())

    @property
    def open(self) -> bool:
        """Whether tasks may be sent to its worker."""
        if self.process is None or self.process.ended:
            return False
        return self.state in (SlotState.IDLE, SlotState.BUSY) and self.reason is None and self.budget > 0

    @property
    def running(self) -> Sent | None:
        """The task that the worker has, or None."""
        return self.sent[0] if self.sent else None

    def fill(self, process: Process, budget: float) -> None:
        """A worker is on its way."""
        self.state = advance(SLOT, self.state, SlotState.BOOTING)
        self.process = process
        self.ready = 0.0
        self.reason = self.worn = self.order = None
        self.kill_at = self.killed_at = math.inf
        self.budget = budget
        self.tasks = self._sequence = self._output_from = 0
        self._salvaged.clear()
        self._unstage()
        self.full = False

    def abandon(self) -> None:
        """The worker was never born."""
        self._process.close()
        self.process = None
        self.kill_at = math.inf
        self.state = advance(SLOT, self.state, SlotState.EMPTY)

    def booted(self, now: float, cpu_seconds: float) -> None:
        """The worker is ready, and has used so much so far."""
        self.state = advance(SLOT, self.state, SlotState.IDLE)
        self.ready = now
        self.kill_at = math.inf
        self.meter.cpu_before = cpu_seconds

    def stage(self, claim: Claim, timeout: float, memory: int | None, now: float, brief: bool) -> None:
        """Put a task among those that the next flush sends.

        :param brief: it is expected to take no time.
        """
        sequence = self._sequence % 0xFFFFFFFF + 1
        record = wire.encode_run(sequence, claim, timeout, now - claim.late, brief)
        self._staged.append(record)
        self._staged_size += len(record)
        self._sequence = sequence
        self.budget -= 1
        self.sent.append(Sent(sequence, claim, timeout, memory, brief))
        if self.state is SlotState.IDLE:
            self.state = advance(SLOT, self.state, SlotState.BUSY)
            self._output_from = self._process.stream.total
        if len(self.sent) == 1:
            self.meter.began(now)
            self._begin(now)

    @property
    def laden(self) -> bool:
        """Whether so much is staged that it should be sent before more is."""
        return len(self._staged) >= STAGED or self._staged_size >= STAGED_SIZE

    def flush(self) -> list[Sent]:
        """Send what is staged; return what found no room. Never blocks."""
        staged = self._unstage()
        if not staged:
            return []
        first = len(self.sent) - len(staged)
        went = self._process.send(staged, [sent.sequence for sent in islice(self.sent, first, None)])
        self.full = went < len(staged)
        return self._withdraw(len(staged) - went)

    def _unstage(self) -> list[bytes]:
        staged, self._staged = self._staged, []
        self._staged_size = 0
        return staged

    def _withdraw(self, count: int) -> list[Sent]:
        """Strike the last of those that were sent off the books."""
        taken = [self.sent.pop() for _ in range(count)][::-1]
        self.budget += count
        if taken and not self.sent:
            self._rest()
        return taken

    def take_reports(
        self, reports: list[records.Report], cpu_seconds: float, now: float, output_before: int
    ) -> list[Ended]:
        """The worker has sent reports: those tasks are over, and the next one has begun, if one was sent.

        :param cpu_seconds: that the worker has used since its birth.
        :param output_before: position in the worker's output before what was read together with these reports.
        :raises ProtocolError: one of them answers something else; no claim has left.
        """
        fresh = [report for report in reports if report.sequence not in self._salvaged] if self._salvaged else reports
        for report, sent in zip_longest(fresh, islice(self.sent, len(fresh))):
            if sent is None or sent.sequence != report.sequence:
                raise wire.ProtocolError(f"report {report.sequence} without its run")
        if self._salvaged:
            self._salvaged.difference_update(report.sequence for report in reports)
        ended = self._end(fresh, cpu_seconds, now, output_before)
        self.meter.reported(ended, cpu_seconds)
        return ended

    def salvage(self, now: float) -> list[Ended]:
        """Take the reports that the worker has not sent yet from the memory that it shares; see ``outbox.py``."""
        if not self.sent or self.process is None:
            return []
        cpu_seconds, reports = records.salvage(self.process.page.outbox())
        fresh: list[records.Report] = []
        for report in reports:
            # Others were sent before, or salvaged.
            if len(fresh) < len(self.sent) and report.sequence == self.sent[len(fresh)].sequence:
                fresh.append(report)
        self._salvaged.update(report.sequence for report in fresh)
        ended = self._end(fresh, cpu_seconds, now, self._output_from)
        self.meter.salvaged(ended)
        return ended

    def _end(self, reports: list[records.Report], cpu_seconds: float, now: float, output_before: int) -> list[Ended]:
        if not reports:
            return []
        # May raise: until then no claim must leave.
        process, order, used = self._process, self.order, cpu_seconds - self.meter.cpu_before
        outcomes = [reported(report, order, process, self.number, used, self._output_from) for report in reports]
        claims = [self.sent.popleft().claim for _ in reports]
        if flags := [report.flags for report in reports if report.flags]:
            self.worn = self.worn or (NO_DESCRIPTORS if flags[0] & records.SPENT else MAX_MEMORY)
        self.tasks += len(reports)
        self.full = False
        self.order = None
        self.kill_at = math.inf
        if self.sent:
            # What was read just now may be the next task's already: better a line too much than its last words lost.
            self._output_from = output_before
            self._begin(now)
        else:
            self.meter.rested(now)
            self._rest()
        return list(zip(claims, outcomes, strict=True))

    def take_back(self) -> list[Sent]:
        """Take back what the worker has not begun, in the order in which it was sent."""
        if not self.sent or self.process is None:
            return []
        staged = len(self._unstage())
        self.full = False
        # Tickets are taken in order: what the worker has not begun is the end of what was sent.
        return self._withdraw(staged + len(self.process.take_back()))

    def order_stop(self, kind: OutcomeKind, text: str, kill_at: float) -> None:
        """Ask the running task to stop: the reason in the control page, then the soft signal."""
        process, sent = self._process, self.sent[0]
        self.order = Order(sent.sequence, kind, text)
        self.reason = str(kind)
        self.kill_at = kill_at
        if self.state is SlotState.BUSY:
            self.state = advance(SLOT, self.state, SlotState.KILLING)
        process.page.ask(sent.sequence, kind, text)
        process.signal(SOFT_SIGNAL)

    def dismiss(self, reason: str, kill_at: float) -> None:
        """Ask the idle worker to leave."""
        self.reason = reason
        self.kill_at = kill_at
        self.state = advance(SLOT, self.state, SlotState.STOPPING)
        # It has no tickets left, so there is room.
        self._process.dismiss()

    def kill(
        self, reason: str, now: float, kind: OutcomeKind = OutcomeKind.CRASHED, text: str | None = None
    ) -> list[int]:
        """Send SIGKILL to the worker's process group and its descendants; these are returned.

        :param kind: what the running task's outcome will be, unless it was ordered to stop before.
        :param text: the error that goes with it; None: what the exit status says.
        """
        self.reason = self.reason or reason
        self.kill_at = math.inf
        self.killed_at = min(self.killed_at, now)
        if self.sent and self.order is None and text is not None:
            self.order = Order(self.sent[0].sequence, kind, text)
        if self.state is not SlotState.KILLING:
            self.state = advance(SLOT, self.state, SlotState.KILLING)
        return self._process.kill()

    def vacate(self, death: Death, now: float, out_of_memory: bool | None) -> list[Ended]:
        """The worker is dead, and its last reports were read: return what becomes of everything else it had.

        :param out_of_memory: what is known of a SIGKILL that was not ours.
        """
        waiting = self.take_back()
        process = self._process
        process.stream.read()
        ended: list[Ended] = []
        if self.sent:
            outcome = died(
                death,
                self.order,
                process,
                self.number,
                seconds=now - self.started,
                cpu_before=self.meter.cpu_before,
                out_of_memory=out_of_memory,
                output_from=self._output_from,
            )
            ended.append((self.sent[0].claim, outcome))
            self.meter.rested(now)
            # More than one cannot be: they were taken from the socket by something that the task started.
            waiting = [*list(self.sent)[1:], *waiting]
        self.meter.reported(ended, death.cpu_seconds)
        ended += [(sent.claim, Outcome(OutcomeKind.INTERRUPTED, 0.0)) for sent in waiting]
        process.close()
        self.sent.clear()
        self.process = None
        self.order = None
        self.deadline = self.kill_at = self.killed_at = math.inf
        self.memory = None
        self.state = advance(SLOT, self.state, SlotState.EMPTY)
        return ended

    @property
    def _process(self) -> Process:
        assert self.process is not None, f"slot {self.number} is empty"
        return self.process

    def _begin(self, now: float) -> None:
        sent = self.sent[0]
        self.started = now
        self.deadline = now + sent.timeout
        self.memory = sent.memory

    def _rest(self) -> None:
        self.deadline = math.inf
        self.memory = None
        if self.state is SlotState.BUSY:
            self.state = advance(SLOT, self.state, SlotState.IDLE)
