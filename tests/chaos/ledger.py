"""The ledger: what was written down of a storm, and whether each task went its way by the rules.

Pure: works on rows that others have read. Here are the rows' types, the way of one task (:func:`walk`), and what must
hold for every task by itself (:func:`check_tasks`); :mod:`tests.chaos.repeats` asks why anything ran twice. Times are
seconds of one monotonic clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.plan import Harm


class Entry(NamedTuple):
    """One change of a row in one of the two partitions."""

    number: int
    at: float
    place: str
    """``live`` or ``ended``."""
    op: str
    """``insert``, ``update`` or ``delete``."""
    task_id: int
    before: str | None
    after: str | None
    fence_before: int | None
    fence_after: int | None
    owner_before: int | None
    owner_after: int | None
    retries_before: int | None
    retries_after: int | None
    transaction: int


class Execution(NamedTuple):
    """One run of a task function, from the journal."""

    task_id: int
    attempt: int
    pid: int
    parent: int
    """The supervisor's pid."""
    name: str
    """No other execution has it; also what the function returns, or raises."""
    began: float
    ended: float | None
    end: str | None
    """``returned``, ``raised``, ``interrupted``; None when the worker died under it."""


class FailureRow(NamedTuple):
    """What pgsched recorded of an attempt that failed."""

    task_id: int
    fence: int
    attempt: int
    outcome: str
    error: str
    supervisor: int | None
    present: bool = True
    """At the storm's end; else it was deleted."""


class Row(NamedTuple):
    """A task at the storm's end, or when it was pruned."""

    task_id: int
    task_type: str
    status: str
    fence: int
    retry_count: int
    max_retries: int
    result: str | None
    due_in: float
    unique_key: str | None
    partition: int = 0
    """Of the live tasks."""
    present: bool = True
    """At the storm's end."""


class Tenure(NamedTuple):
    """A supervisor's registration."""

    supervisor: int
    pid: int
    at: float


class Done(NamedTuple):
    """A harm that was done."""

    at: float
    until: float
    harm: Harm
    seat: int
    pid: int | None
    """Of the process that was hit, if it was one."""


class Book(NamedTuple):
    """Everything that was written down of a storm."""

    entries: Sequence[Entry] = ()
    executions: Sequence[Execution] = ()
    failures: Sequence[FailureRow] = ()
    rows: Sequence[Row] = ()
    tenures: Sequence[Tenure] = ()
    done: Sequence[Done] = ()
    deaths: Mapping[int, float] = {}
    """When the supervisor with this pid was seen dead."""
    leases_lost: Mapping[int, float] = {}
    """When the supervisor with this id said so."""
    seats: Mapping[int, int] = {}
    """Where the supervisor with this pid sat."""
    lease: float = 5.0
    bound: Mapping[int, tuple[int, ...]] = {}
    """The partitions that the supervisor of a seat claims from; none: all."""
    kept: float | None = None
    """Seconds for which ended tasks are kept at least; None: for ever."""


class Violation(NamedTuple):
    """Something that must not be."""

    what: str
    task_id: int | None
    text: str


class Stint(NamedTuple):
    """One claim, from the claim until the row left ``processing``."""

    fence: int
    owner: int
    retries: int
    at: float
    reaped: tuple[Entry, ...] = ()
    left_at: float | None = None
    left: str | None = None
    """``retry``, ``released``, ``completed``, ``failed``, ``cancelled``; None: it has not been left."""
    last_fence: int = 0
    """The fence under which it was left: another one after a reap."""


class Way(NamedTuple):
    """The way of one task."""

    stints: tuple[Stint, ...]
    ended: str | None
    queued: int
    """How often it was queued anew; 1 by the rules of a storm."""
    wrong: tuple[str, ...]
    """Transitions that the rules do not know."""
    ended_at: float | None = None
    pruned_at: float | None = None

    @property
    def retries(self) -> int:
        return sum(stint.left == "retry" for stint in self.stints)

    @property
    def counted(self) -> int:
        """Claims that cost an attempt."""
        return sum(stint.left != "released" for stint in self.stints)


def walk(entries: Iterable[Entry]) -> Way:
    """Follow one task through its entries, in their order."""
    stints: list[Stint] = []
    wrong: list[str] = []
    state: str | None = None
    queued = 0
    removed: Entry | None = None
    ended_at = pruned_at = None
    for entry in entries:
        step = (entry.place, entry.op, entry.before, entry.after)
        expected = state
        if step == ("live", "insert", None, "queued") and state is None:
            queued += 1
            state = "queued"
        elif step == ("live", "update", "queued", "processing") and state == "queued":
            state = "processing"
            if _rise(entry) != 1 or entry.owner_after is None:
                wrong.append(f"a claim without a new fence or an owner: {entry}")
            stints.append(Stint(entry.fence_after or 0, entry.owner_after or 0, entry.retries_after or 0, entry.at))
        elif step == ("live", "update", "processing", "processing") and state == "processing":
            if _rise(entry) == 1:
                stints[-1] = stints[-1]._replace(reaped=(*stints[-1].reaped, entry))
            elif _rise(entry) or entry.owner_before != entry.owner_after:
                wrong.append(f"an owner or a fence that changed without a reap: {entry}")
        elif step == ("live", "update", "processing", "queued") and state == "processing":
            state = "queued"
            granted = (entry.retries_after or 0) - (entry.retries_before or 0)
            if (granted, _rise(entry)) not in ((1, 0), (0, 1)):
                wrong.append(f"neither a retry nor a release: {entry}")
            _leave(stints, entry, "retry" if granted else "released")
        elif entry.place == "live" and entry.op == "delete" and state == entry.before:
            removed = entry
            state = "removed"
        elif step[:3] == ("ended", "insert", None) and removed and removed.transaction == entry.transaction:
            state, ended_at = entry.after, entry.at
            rise = (entry.fence_after or 0) - (removed.fence_before or 0)
            by_settle = entry.after in ("completed", "failed") and removed.before == "processing" and rise == 0
            if not by_settle and not (entry.after == "cancelled" and rise == 1):
                wrong.append(f"an end that is neither a settle's nor a cancel's: {entry}")
            if removed.before == "processing":
                _leave(stints, removed, entry.after)
        elif step == ("ended", "delete", state, None) and ended_at is not None and pruned_at is None:
            pruned_at = entry.at
        else:
            wrong.append(f"a row that was {expected}: {entry}")
    return Way(tuple(stints), state, queued, tuple(wrong), ended_at, pruned_at)


def _rise(entry: Entry) -> int:
    return (entry.fence_after or 0) - (entry.fence_before or 0)


def _leave(stints: list[Stint], entry: Entry, way: str | None) -> None:
    stints[-1] = stints[-1]._replace(left=way, left_at=entry.at, last_fence=entry.fence_before or 0)


def ways(entries: Iterable[Entry]) -> dict[int, Way]:
    """The ways of all tasks."""
    by_task: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_task[entry.task_id].append(entry)
    return {task_id: walk(found) for task_id, found in by_task.items()}


def check_tasks(book: Book, found: Mapping[int, Way]) -> Iterator[Violation]:
    """What must hold for each task by itself, whatever was done to the processes."""
    yield from _check_settles(book.entries)
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for row in book.rows:
        rows[row.task_id].append(row)
    failures = Counter((failure.task_id, failure.fence) for failure in book.failures)
    for task_id, way in found.items():
        for text in way.wrong:
            yield Violation("illegal transition", task_id, text)
        if way.queued != 1:
            yield Violation("illegal transition", task_id, f"queued {way.queued} times")
        if len(rows[task_id]) != 1:
            what = "lost task" if not rows[task_id] else "doubled task"
            yield Violation(what, task_id, f"{len(rows[task_id])} rows at the end")
            continue
        for what, text in _check_end(rows[task_id][0], way):
            yield Violation(what, task_id, text)
        for stint in way.stints:
            recorded = failures.pop((task_id, stint.last_fence), 0)
            if stint.left in ("retry", "failed") and recorded != 1:
                text = f"{recorded} failures are recorded of fence {stint.last_fence}, which ended in {stint.left}"
                yield Violation("failure record", task_id, text)
            elif recorded and stint.left in ("completed", "cancelled", None):
                text = f"a failure is recorded of fence {stint.last_fence}, which ended in {stint.left}"
                yield Violation("failure record", task_id, text)
    for task_id, fence in failures:
        yield Violation("failure record", task_id, f"a failure is recorded of fence {fence}, which nobody left")
    for row in book.rows:
        if row.task_id not in found:
            yield Violation("illegal transition", row.task_id, "a row that nobody queued")


def _check_settles(entries: Iterable[Entry]) -> Iterator[Violation]:
    settles = Counter(
        (entry.task_id, entry.fence_before)
        for entry in entries
        if entry.place == "live" and entry.before == "processing" and entry.after != "processing"
    )
    for (task_id, fence), count in settles.items():
        if count > 1:
            yield Violation("two settles", task_id, f"{count} were accepted under fence {fence}")


def _check_end(row: Row, way: Way) -> Iterator[tuple[str, str]]:
    if row.status in ("queued", "processing"):
        if row.status == "processing" or row.due_in <= 0:
            yield "stuck task", f"still {row.status}, due in {row.due_in:.1f} s"
    elif row.status != way.ended:
        yield "illegal transition", f"the row is {row.status}, and its last entry says {way.ended}"
    if row.retry_count != way.retries:
        yield "retry count", f"retry_count is {row.retry_count}, and {way.retries} retries were granted"
    if way.counted > row.max_retries + 1:
        yield "too many attempts", f"{way.counted} counted claims with max_retries {row.max_retries}"
    if row.status == "failed" and way.counted != row.max_retries + 1:
        yield "too few attempts", f"failed after {way.counted} counted claims with max_retries {row.max_retries}"
    if row.status == "completed" and way.stints and way.stints[-1].left != "completed":
        yield "illegal transition", "completed, but not by its last claim"
