"""The protocol as a machine of rules: up to three supervisors on two hosts, and everything that can happen to them.

Any reply may be lost; a call whose client has given up may be done at once, later, or be left open; a process may die
between any two steps; time passes for all, and stands still between steps. After each step the rows must be what the
oracle says; in the end every task that was ever committed must come to an end.
"""

import enum
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RULE_MARKER, RuleBasedStateMachine, invariant, precondition, rule

from pgsched.model import Claim, Outcome, OutcomeKind, Status
from pgsched.rules.verdict import lost
from tests.model.calls import Calls, Effect, Exchanged, Half
from tests.model.database import Database
from tests.model.oracle import Oracle, Task, hold
from tests.model.process import STEP, Process, Rules

T = TypeVar("T")

SLOTS = 3
HOST_OF = (0, 0, 1)
TASKS = 4
"""Tasks that are live at most."""


class Fate(enum.Enum):
    """What becomes of a call."""

    ANSWERED = enum.auto()
    LOST = enum.auto()
    """It is done, and the answer is lost."""
    LATE = enum.auto()
    """The client gives up; the server does it later."""
    OPEN = enum.auto()
    """The client gives up while the server has done it, and not committed."""


class Lost(Exception):
    """The client's answer to a call that it gave up."""


picks = st.integers(0, 11)
fates = st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.ANSWERED, Fate.LOST, Fate.LATE, Fate.OPEN])
unlucky = st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.LOST, Fate.LATE, Fate.LATE, Fate.OPEN])
ENDS = [OutcomeKind.RETURNED, OutcomeKind.RAISED, OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED, OutcomeKind.INTERRUPTED]


class Protocol(RuleBasedStateMachine):
    """One history; `database` and `decisions` are set by whoever runs it."""

    database: ClassVar[Database]
    decisions: ClassVar[Rules]

    def __init__(self) -> None:
        super().__init__()
        self.database.reset()
        self.oracle = Oracle()
        self.calls = Calls(self.database, self.oracle)
        self.processes: list[Process | None] = [None] * SLOTS
        self.births = 0
        self.late: list[Half] = []
        self.flight: Effect | None = None
        """What the commit of the transaction amounts to that is left open; None: none is."""

    # Who can do something

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if process is not None]

    @property
    def able(self) -> list[Process]:
        return [process for process in self.living if self._trusts(process)]

    @property
    def lapsed(self) -> list[Process]:
        return [process for process in self.living if not self._trusts(process)]

    def _trusts(self, process: Process) -> bool:
        return process.trust.trusted(self._clock(process))

    def _clock(self, process: Process) -> float:
        return self.oracle.now + process.zero

    def _line(self, process: Process) -> psycopg.Connection[Any]:
        return self.database.lines[process.slot]

    def _with(self, condition: Callable[[Process], object]) -> list[Process]:
        return [process for process in self.able if condition(process)]

    def _tasks(self, *statuses: Status) -> list[Task]:
        return [task for task in self.oracle.tasks.values() if task.status in statuses]

    # What a call meets

    def _ask(self, process: Process, half: Half, fate: Fate, *, may_wait: bool = True) -> Any:
        """Call, and meet one's fate.

        :raises Lost: there is no answer.
        """
        try:
            if fate is Fate.LATE:
                self.late.append(half)
                raise Lost
            if fate is Fate.OPEN and self.flight is None:
                _, self.flight = half(self.database.open)
                raise Lost
            answer = self.calls.commit(self._line(process), half)
            if fate is Fate.LOST:
                raise Lost
        except psycopg.errors.LockNotAvailable:
            hold(self.flight is not None, "nobody waits without a reason", process.id)
            hold(may_wait, "claims and reaps wait for nobody", process.id)
            raise Lost from None
        return answer

    def _try(self, call: Callable[[], T]) -> T | None:
        """A call that does nothing when it meets the locks of the open transaction."""
        try:
            return call()
        except psycopg.errors.LockNotAvailable:
            hold(self.flight is not None, "nobody waits without a reason")
            return None

    # Producers and operators

    @precondition(lambda self: len(self._tasks(Status.QUEUED, Status.PROCESSING)) < TASKS)
    @rule(max_retries=st.integers(0, 2), key=st.sampled_from([None, None, "k"]))
    def enqueue(self, max_retries: int, key: str | None) -> None:
        fields = ("a", "{}", "default", "0", str(max_retries), None, "0", None, key)
        rows = self._try(lambda: self.database.run(self.database.lines[0], ("enqueue_once", fields)))
        if rows is not None:
            [[(task_id,)]] = rows
            self.oracle.enqueued(task_id, max_retries, key)

    @precondition(lambda self: self._tasks(Status.QUEUED, Status.PROCESSING))
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        task = _one(self._tasks(Status.QUEUED, Status.PROCESSING), pick)
        chosen = ([task.id], ["queued", "processing"], None, None, -(2**63), 1000)
        rows = self._try(lambda: self.database.run(self.database.lines[0], ("cancel", chosen)))
        if rows is not None:
            self.oracle.cancelled(task.id, bool(rows[0]))

    @precondition(lambda self: self._tasks(Status.FAILED, Status.CANCELLED))
    @rule(pick=picks)
    def queue_anew(self, pick: int) -> None:
        task = _one(self._tasks(Status.FAILED, Status.CANCELLED), pick)
        chosen = ([task.id], ["failed", "cancelled"], None, None, -(2**63), 1000)
        rows = self._try(lambda: self.database.run(self.database.lines[0], ("retry", chosen)))
        if rows is not None:
            self.oracle.retried(task.id, bool(rows[0] and rows[0][0][1] is None))

    # Workers that are no supervisors

    @precondition(lambda self: self._tasks(Status.QUEUED) and self.flight is None)
    @rule()
    def strange_claim(self) -> None:
        rows = self.database.outside(
            "UPDATE scheduled_tasks SET status = 'processing', updated_at = now() WHERE id = (SELECT id FROM"
            " scheduled_tasks WHERE status = 'queued' AND run_at <= now() ORDER BY run_at, id LIMIT 1"
            " FOR UPDATE SKIP LOCKED) RETURNING id"
        )
        for (task_id,) in rows:
            self.oracle.strange(task_id)

    @precondition(lambda self: self.oracle.strangers() and self.flight is None)
    @rule(pick=picks)
    def strange_end(self, pick: int) -> None:
        task = _one(self.oracle.strangers(), pick)
        self.database.outside("UPDATE scheduled_tasks SET status = 'completed' WHERE id = %s", task.id)
        task.status = Status.COMPLETED

    @precondition(lambda self: self._tasks(Status.PROCESSING) and self.flight is None)
    @rule()
    def disturb(self) -> None:
        """Somebody writes to the rows in work, which then lie elsewhere than their claims have left them."""
        earlier = "UPDATE scheduled_tasks SET run_at = run_at - interval '1 second' WHERE status = 'processing'"
        self.database.outside(earlier)

    # A supervisor's life

    @precondition(lambda self: None in self.processes)
    @rule(pick=picks)
    def start(self, pick: int) -> None:
        self._start(_one([slot for slot, process in enumerate(self.processes) if process is None], pick))

    def _start(self, slot: int) -> Process:
        self.births += 1
        process = Process(self.decisions, slot, HOST_OF[slot], self.births, zero=1000.0 * self.births)
        self._enter(process)
        self.processes[slot] = process
        return process

    def _enter(self, process: Process) -> None:
        started = self._clock(process)
        self.calls.register(self._line(process), process)
        process.trust.renewed(started)

    @precondition(lambda self: self.lapsed)
    @rule(pick=picks)
    def lapse(self, pick: int) -> None:
        self._void(_one(self.lapsed, pick))

    def _void(self, process: Process) -> None:
        process.void()
        self._enter(process)

    @precondition(lambda self: self.living)
    @rule(pick=picks)
    def crash(self, pick: int) -> None:
        self.processes[_one(self.living, pick).slot] = None

    @precondition(lambda self: self._with(lambda p: p.pending or p.unsure))
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        """Crash with a settle on its way."""
        process = _one(self._with(lambda p: p.pending or p.unsure), pick)
        self.late.append(self.calls.exchange(process.id, process.unsure or process.pending, 0))
        self.processes[process.slot] = None

    @precondition(lambda self: self._with(lambda p: not p.holdings))
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        process = _one(self._with(lambda p: not p.holdings), pick)

        def call() -> None:
            self.calls.strays(self._line(process), process)
            self.calls.leave(self._line(process), process)

        self._try(call)
        self.processes[process.slot] = None

    @precondition(lambda self: self.able)
    @rule(pick=picks, slow=st.sampled_from([0, 0, 1, 2]), fate=fates)
    def renew(self, pick: int, slow: int, fate: Fate) -> None:
        process = _one(self.able, pick)
        started = self._clock(process)
        try:
            granted = self._ask(process, self.calls.renew(process.id), Fate.LOST if fate is Fate.OPEN else fate)
        except Lost:
            return
        if not granted:
            self._void(process)
            return
        if slow:
            self._pass(slow)
        process.trust.renewed(self._clock(process) if self.decisions.late_trust else started)

    # Claims and settles

    @precondition(
        lambda self: self._with(lambda p: p.pending or p.unsure) or (self.able and self._tasks(Status.QUEUED))
    )
    @rule(pick=picks, total=st.sampled_from([0, 1, 3]), fate=fates)
    def exchange(self, pick: int, total: int, fate: Fate) -> None:
        queued = self._tasks(Status.QUEUED)
        process = _one(self._with(lambda p: queued or p.pending or p.unsure), pick)
        self._exchange(process, total if queued else 0, fate)

    @precondition(lambda self: self._with(lambda p: p.pending or p.unsure))
    @rule(pick=picks, fate=unlucky)
    def settle(self, pick: int, fate: Fate) -> None:
        self._exchange(_one(self._with(lambda p: p.pending or p.unsure), pick), 0, fate)

    def _exchange(self, process: Process, total: int, fate: Fate) -> None:
        resent = bool(process.unsure)
        if not resent:
            process.unsure, process.pending = process.pending, []
        verdicts = process.unsure
        if not verdicts and not total:
            return
        try:
            answer: Exchanged = self._ask(
                process, self.calls.exchange(process.id, verdicts, total), fate, may_wait=bool(verdicts)
            )
            if answer.alive:
                settled = self._settle_elsewhere(process, answer)
                if resent and not all(settled):
                    unsure = [verdict for verdict, done in zip(verdicts, settled, strict=True) if not done]
                    self.calls.settled_before(self._line(process), unsure)
        except Lost:
            process.strays_suspected = process.strays_suspected or total > 0
            return
        if not answer.alive:
            self._void(process)
            return
        process.unsure = []
        process.holdings.remove(*[verdict.claim for verdict in verdicts])
        process.hold(answer.claims)

    def _settle_elsewhere(self, process: Process, answer: Exchanged) -> list[bool]:
        """Settle those whose row was not where their claim had left it."""
        settled = list(answer.settled)
        missing = [index for index, done in enumerate(settled) if not done and process.unsure[index].claim.place]
        if missing:
            verdicts = [process.unsure[index] for index in missing]
            moved = [verdict._replace(claim=verdict.claim._replace(place=None)) for verdict in verdicts]
            second = self._ask(process, self.calls.exchange(process.id, moved, 0), Fate.ANSWERED)
            for index, done in zip(missing, second.settled, strict=True):
                settled[index] = done
        return settled

    @precondition(lambda self: self._with(lambda p: p.waiting))
    @rule(pick=picks)
    def begin(self, pick: int) -> None:
        self._begin(_one(self._with(lambda p: p.waiting), pick))

    def _begin(self, process: Process) -> Claim:
        claim = process.waiting.pop(0)
        process.running.append(claim)
        self.oracle.began(claim)
        return claim

    @precondition(lambda self: self._with(lambda p: p.running))
    @rule(pick=picks, kind=st.sampled_from(ENDS))
    def end(self, pick: int, kind: OutcomeKind) -> None:
        process = _one(self._with(lambda p: p.running), pick)
        process.end(_one(process.running, pick), kind)

    @precondition(lambda self: self._with(lambda p: p.waiting))
    @rule(pick=picks, kind=st.sampled_from([*ENDS, None]))
    def work(self, pick: int, kind: OutcomeKind | None) -> None:
        """From the beginning to the end in one step; or give back what has not begun."""
        process = _one(self._with(lambda p: p.waiting), pick)
        if kind is None:
            process.conclude(process.waiting.pop(), Outcome(OutcomeKind.INTERRUPTED, 0.0))
            return
        process.end(self._begin(process), kind)

    @precondition(lambda self: self._with(lambda p: p.waiting or p.running))
    @rule(pick=picks)
    def watch(self, pick: int) -> None:
        process = _one(self._with(lambda p: p.waiting or p.running), pick)
        claims = process.waiting + process.running
        for claim in self._try(lambda: self.calls.confirm(self._line(process), process, claims)) or []:
            process.drop(claim)

    # Reaping

    @precondition(lambda self: self.able)
    @rule(pick=picks, fate=fates)
    def reap(self, pick: int, fate: Fate) -> None:
        process = _one(self.able, pick)
        try:
            self._reap(process, fate)
        except Lost:
            process.strays_suspected = True

    def _reap(self, process: Process, fate: Fate) -> None:
        half = self.calls.reap(process.id, fate is not Fate.LATE and self.flight is None)
        claims: list[Claim] = self._ask(process, half, fate, may_wait=False)
        self._lose(process, claims)

    def _lose(self, process: Process, claims: list[Claim]) -> None:
        process.holdings.add(claims)
        for claim in claims:
            process.conclude(claim, lost())

    @precondition(lambda self: self._with(lambda p: p.strays_suspected))
    @rule(pick=picks)
    def release_strays(self, pick: int) -> None:
        process = _one(self._with(lambda p: p.strays_suspected), pick)
        self._lose(process, self._try(lambda: self.calls.strays(self._line(process), process)) or [])

    @precondition(lambda self: self.able)
    @rule(pick=picks)
    def take_over(self, pick: int) -> None:
        process = _one(self.able, pick)
        self._try(lambda: self.calls.take_over(self._line(process), process, self.living))

    # The world

    @precondition(lambda self: self.late)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        """The server comes to a call whose client has given up."""
        half = self.late.pop(pick % len(self.late))
        self._try(lambda: self.calls.commit(self.database.lines[0], half))

    @precondition(lambda self: self.flight)
    @rule(commit=st.sampled_from([True, True, False]))
    def land(self, commit: bool) -> None:
        """The open transaction comes to its end."""
        effect, self.flight = self.flight, None
        self.database.land(commit)
        if commit and effect is not None:
            effect()

    @rule()
    def idle(self) -> None:
        """There may be nothing else to do."""

    @rule(steps=st.sampled_from([1, 1, 2, 3, 8]))
    def wait(self, steps: int) -> None:
        self._pass(steps)

    def _pass(self, steps: int) -> None:
        self.database.advance(steps * STEP)
        self.oracle.now += steps * STEP

    # What must hold

    @invariant()
    def rows_are_as_told(self) -> None:
        rows = {row.id: row for row in self.database.tasks()}
        hold(rows.keys() == self.oracle.tasks.keys(), "no task is lost", rows.keys() ^ self.oracle.tasks.keys())
        for task in self.oracle.tasks.values():
            row = rows[task.id]
            told = (task.status, task.fence, task.retry_count)
            hold((row.status, row.fence, row.retry_count) == told, "rows change by what was answered", row, task)
            if task.status is Status.PROCESSING:
                hold(row.claimed_by == task.holder, "a claim has its holder's name", row, task)
        keys = [row.key for row in rows.values() if row.key and row.status in ("queued", "processing")]
        hold(len(keys) == len(set(keys)), "a unique key has one live task", keys)

    @invariant()
    def leases_are_as_told(self) -> None:
        found = self.database.supervisors()
        for supervisor in self.oracle.leases:
            alive = self.oracle.alive(supervisor)
            hold(found.get(supervisor, False) == alive, "the database's clock judges a lease", supervisor, alive)
        for task in self._tasks(Status.PROCESSING):
            hold(task.holder is None or task.holder in found, "a holder is known until he is reaped", task)

    @invariant()
    def nobody_trusts_a_lost_lease(self) -> None:
        for process in self.able:
            hold(self.oracle.alive(process.id), "trust ends before the lease does", process.id)

    @invariant()
    def nothing_runs_twice(self) -> None:
        running = [claim for process in self.able for claim in process.running]
        valid = [claim.task_id for claim in running if claim.fence > self.oracle.tasks[claim.task_id].voided]
        hold(len(valid) == len(set(valid)), "nothing runs twice at a time", running)

    def teardown(self) -> None:
        if sys.exception() is None:
            self._come_to_an_end()

    def _come_to_an_end(self) -> None:
        """Everybody dies, and one who comes afterwards ends every task."""
        if self.flight is not None:
            self.flight = None
            self.database.land(commit=False)
        self.processes = [None] * SLOTS
        self._pass(10)
        process = self._start(0)
        for _ in range(3 * TASKS):
            if not self._tasks(Status.QUEUED, Status.PROCESSING):
                return
            self._reap(process, Fate.ANSWERED)
            self._exchange(process, 100, Fate.ANSWERED)
            while process.waiting:
                process.end(self._begin(process), OutcomeKind.RETURNED)
            self._exchange(process, 0, Fate.ANSWERED)
            self.calls.commit(self._line(process), self.calls.renew(process.id))
            process.trust.renewed(self._clock(process))
            self.rows_are_as_told()
            self._pass(1)
        hold(not self._tasks(Status.QUEUED, Status.PROCESSING), "every task comes to an end", self.oracle.tasks)


def _one(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


def part_of(machine: type[Protocol], steps: str) -> dict[str, None]:
    """What hides the rules that are not among these, when it is put into a subclass."""
    rules = [name for name, member in vars(machine).items() if hasattr(member, RULE_MARKER)]
    return {name: None for name in rules if steps and name not in ("idle", *steps.split())}
