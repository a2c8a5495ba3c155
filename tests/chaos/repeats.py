"""The ledger's second half: each execution belongs to a claim, and each one more than the first has a reason.

Pure, like :mod:`tests.chaos.ledger`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.ledger import Book, Done, Execution, Stint, Violation, Way
from tests.chaos.plan import NO_SEAT, Harm, Kind

BLUR = 0.1
"""Seconds by which two clocks of one host may be read apart."""
OWN_DOING = {
    "raised": (Kind.WRONG, Kind.FLAKY),
    "crashed": (Kind.SUICIDE,),
    "timed_out": (Kind.OVERTIME,),
    "over_memory": (Kind.HOG,),
}
"""Kinds of task that end so by themselves."""
OF_WORKERS = {"crashed": Harm.KILL_WORKER, "timed_out": Harm.STOP_WORKER}
CUTS_OFF = frozenset(
    {
        *(Harm.STOP_SUPERVISOR, Harm.REFUSE, Harm.REJECT, Harm.SILENCE, Harm.CUT, Harm.SWALLOW, Harm.DELAY),
        *(Harm.TERMINATE_BACKENDS, Harm.CRASH_SERVER, Harm.FILL_TABLES, Harm.FILL_LOG),
    }
)
"""What may cost a supervisor its lease."""
AFTERMATH = 12.0
"""Seconds, besides two leases, in which a harm may still cost one: in outages supervisors wait longer each time."""


class _Run(NamedTuple):
    execution: Execution
    stint: Stint


def check_executions(book: Book, found: Mapping[int, Way]) -> Iterator[Violation]:
    """Everything that ran was claimed, ran once a claim, and was repeated for a reason."""
    pids = {tenure.supervisor: tenure.pid for tenure in book.tenures}
    runs: defaultdict[int, list[_Run]] = defaultdict(list)
    for execution in book.executions:
        way = found.get(execution.task_id)
        stint = _claim_of(execution, way.stints if way else (), pids)
        if stint is None:
            yield Violation("ran without a claim", execution.task_id, str(execution))
        else:
            runs[execution.task_id].append(_Run(execution, stint))
    kinds = {row.task_id: row.task_type for row in book.rows}
    results = {row.task_id: row.result for row in book.rows}
    for task_id, way in found.items():
        yield from _check_once(task_id, runs[task_id])
        for stint in way.stints:
            ran = [run.execution for run in runs[task_id] if run.stint.fence == stint.fence]
            if stint.left == "completed":
                yield from _check_completed(task_id, stint, ran, results.get(task_id))
            elif stint.left == "released":
                yield from _check_released(task_id, stint, ran, book, pids)
            elif stint.left in ("retry", "failed"):
                yield from _check_failed(task_id, stint, ran, book, kinds.get(task_id), pids)


def _claim_of(execution: Execution, stints: Sequence[Stint], pids: Mapping[int, int]) -> Stint | None:
    """The claim that an execution belongs to: its supervisor's last one before it, of the same attempt."""
    of_attempt = [
        stint
        for stint in stints
        if stint.retries + 1 == execution.attempt
        and stint.at <= execution.began + BLUR
        # A worker whose supervisor has just been killed has another parent for its last moment.
        and (pids.get(stint.owner) == execution.parent or execution.parent not in pids.values())
    ]
    return of_attempt[-1] if of_attempt else None


def _check_once(task_id: int, runs: Sequence[_Run]) -> Iterator[Violation]:
    fences = [run.stint.fence for run in runs]
    for fence in sorted({fence for fence in fences if fences.count(fence) > 1}):
        names = [run.execution for run in runs if run.stint.fence == fence]
        yield Violation("ran twice under one claim", task_id, f"fence {fence}: {names}")


def _check_completed(task_id: int, stint: Stint, ran: Sequence[Execution], result: str | None) -> Iterator[Violation]:
    returned = [
        execution
        for execution in ran
        if execution.end == "returned" and execution.ended is not None and stint.left_at is not None
        # Its worker writes the end down before it reports.
        if execution.ended <= stint.left_at + BLUR
    ]
    if not returned:
        yield Violation("completed without a run", task_id, f"fence {stint.fence}: {list(ran)}")
    elif result != returned[-1].name:
        yield Violation("result of another run", task_id, f"{result} under fence {stint.fence}: {list(ran)}")


def _check_released(
    task_id: int, stint: Stint, ran: Sequence[Execution], book: Book, pids: Mapping[int, int]
) -> Iterator[Violation]:
    told = [done for done in book.done if done.harm is Harm.TERMINATE_SUPERVISOR and done.pid == pids.get(stint.owner)]
    if ran and not told:
        yield Violation("released although it ran", task_id, f"fence {stint.fence}: {list(ran)}")


def _check_failed(
    task_id: int,
    stint: Stint,
    ran: Sequence[Execution],
    book: Book,
    kind: str | None,
    pids: Mapping[int, int],
) -> Iterator[Violation]:
    failure = next((f for f in book.failures if (f.task_id, f.fence) == (task_id, stint.last_fence)), None)
    if failure is None:
        return
    about = f"fence {stint.last_fence}: {failure.outcome}: {failure.error}"
    if failure.outcome == "lost" or stint.reaped:
        if failure.outcome != "lost" or not stint.reaped:
            yield Violation("unexplained loss", task_id, f"{about}, reaped {len(stint.reaped)} times")
        for reap in stint.reaped:
            if not _over(reap.owner_before, reap.at, book, pids):
                yield Violation("unexplained loss", task_id, f"{about}; owner {reap.owner_before} lives: {reap}")
        return
    own = kind in OWN_DOING.get(failure.outcome, ())
    hit = _was_hit(ran, stint, book, OF_WORKERS.get(failure.outcome), pids)
    if not own and not hit:
        yield Violation("unexplained failure", task_id, f"{about}, of a {kind}: {list(ran)}")
    elif own and failure.outcome == "raised" and not any(e.name in failure.error for e in ran):
        yield Violation("failure of another run", task_id, f"{about}: {list(ran)}")


def _over(supervisor: int | None, at: float, book: Book, pids: Mapping[int, int]) -> bool:
    """Whether a supervisor had died when it was reaped, or had lost its lease to something."""
    if supervisor is None:
        return False
    pid = pids.get(supervisor)
    died = book.deaths.get(pid or 0)
    if died is not None and died <= at + 5.0:
        return True
    # A stopped process says so only when it goes on.
    return supervisor in book.leases_lost and _cut_off(book, pid, at)


def _was_hit(ran: Sequence[Execution], stint: Stint, book: Book, harm: Harm | None, pids: Mapping[int, int]) -> bool:
    hits = [done for done in book.done if done.harm is harm and harm is not None]
    if ran:
        return any(done.pid == execution.pid for done in hits for execution in ran)
    # It died before the function began: then the journal does not know of it.
    seat = book.seats.get(pids.get(stint.owner, 0))
    end = stint.left_at or stint.at
    return any(done.seat == seat and stint.at - BLUR <= done.at <= end + BLUR for done in hits)


def check_leases(book: Book) -> Iterator[Violation]:
    """Each lease that was lost was lost to something."""
    pids = {tenure.supervisor: tenure.pid for tenure in book.tenures}
    for supervisor, at in book.leases_lost.items():
        if not _cut_off(book, pids.get(supervisor), at):
            yield Violation("unexplained loss of a lease", None, f"supervisor {supervisor} at {at:.1f}")


def _cut_off(book: Book, pid: int | None, at: float) -> bool:
    return any(_reaches(done, book.seats.get(pid or 0), at, 2 * book.lease + AFTERMATH) for done in book.done)


def _reaches(done: Done, seat: int | None, at: float, after: float) -> bool:
    return done.harm in CUTS_OFF and done.seat in (seat, NO_SEAT) and done.at <= at <= done.until + after


def check_keys(book: Book, found: Mapping[int, Way]) -> Iterator[Violation]:
    """No two live tasks ever had one key."""
    spans: defaultdict[str, list[tuple[float, float, int]]] = defaultdict(list)
    begins = {entry.task_id: entry.at for entry in reversed(book.entries)}
    for row in book.rows:
        way = found.get(row.task_id)
        if row.unique_key is not None and way is not None:
            end = way.ended_at if way.ended_at is not None else float("inf")
            spans[row.unique_key].append((begins[row.task_id], end, row.task_id))
    for key, each in spans.items():
        each.sort()
        for (_, end, _), (begin, _, task_id) in pairwise(each):
            # The trigger's clock is read before the commit, for which the other insert waited.
            if begin < end - BLUR:
                yield Violation("two tasks of one key", task_id, key)
