"""The ledger can say no: made-up histories, each with one thing in it that must not be."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.keeping import check_terms
from tests.chaos.ledger import Book, Done, Entry, Execution, FailureRow, Row, Tenure, Violation, check_tasks, ways
from tests.chaos.plan import NO_SEAT, Harm, Kind
from tests.chaos.repeats import check_executions, check_keys, check_leases

TASK = 1
FIRST, SECOND = 71, 72
"""Supervisors; their pids are ten times that."""


class Tale:
    """Builds the book of one task; each method is one thing that happens, a second after the last."""

    def __init__(self, kind: Kind = Kind.NAP, max_retries: int = 3) -> None:
        self.at = 100.0
        self.fence = self.retries = 0
        self.owner: int | None = None
        self.state: str | None = None
        self.entries: list[Entry] = []
        self.executions: list[Execution] = []
        self.failures: list[FailureRow] = []
        self.done: list[Done] = []
        self.deaths: dict[int, float] = {}
        self.leases_lost: dict[int, float] = {}
        self.kind = kind
        self.max_retries = max_retries
        self.result: str | None = None
        self.due_in = -1.0
        self.transaction = 0
        self.pruned = False
        self._write("insert", "queued")

    def _write(self, op: str, after: str | None, *, fence: int = 0, owner: int | None = None, retries: int = 0) -> None:
        self.at += 1
        self.transaction += 1
        before = (self.state, self.fence, self.owner, self.retries)
        self.fence, self.retries = self.fence + fence, self.retries + retries
        old = before if op != "insert" else (None, None, None, None)
        new = (after, self.fence, owner, self.retries) if op != "delete" else (None, None, None, None)
        pairs: list[Any] = [value for pair in zip(old, new, strict=True) for value in pair]
        self.entries.append(Entry._make([len(self.entries), self.at, "live", op, TASK, *pairs, self.transaction]))
        self.state, self.owner = after, owner

    def claim(self, owner: int = FIRST, fence: int = 1) -> "Tale":
        self._write("update", "processing", fence=fence, owner=owner)
        return self

    def reap(self, by: int = SECOND) -> "Tale":
        self._write("update", "processing", fence=1, owner=by)
        return self

    def run(self, end: str | None = "returned", pid: int = 5, parent: int | None = None) -> "Tale":
        self.at += 1
        name = f"{pid}-{self.at}"
        parent = parent if parent is not None else 10 * (self.owner or 0)
        ended = self.at + 0.5 if end else None
        self.executions.append(Execution(TASK, self.retries + 1, pid, parent, name, self.at, ended, end))
        self.result = name
        return self

    def retry(self, outcome: str, error: str | None = None) -> "Tale":
        self._fail(outcome, error)
        self._write("update", "queued", retries=1)
        return self

    def release(self) -> "Tale":
        self._write("update", "queued", fence=1)
        return self

    def end(self, status: str = "completed", outcome: str = "raised") -> "Tale":
        if status == "failed":
            self._fail(outcome, None)
        rise = int(status == "cancelled")
        self._write("delete", None)
        last = self.entries[-1]
        after = (None, status, None, self.fence + rise, None, None, None, self.retries)
        self.entries.append(Entry(len(self.entries), self.at, "ended", "insert", TASK, *after, last.transaction))
        self.state = status
        return self

    def prune(self, age: float = 20.0) -> "Tale":
        self.at += age
        self.transaction += 1
        was = (self.state, None, self.fence, None, None, None, self.retries, None)
        self.entries.append(Entry(len(self.entries), self.at, "ended", "delete", TASK, *was, self.transaction))
        self.pruned = True
        self.failures = [failure._replace(present=False) for failure in self.failures]
        return self

    def _fail(self, outcome: str, error: str | None) -> None:
        name = self.executions[-1].name if self.executions else ""
        self.failures.append(
            FailureRow(TASK, self.fence, self.retries + 1, outcome, error or f"ValueError: {name}", self.owner)
        )

    def harm(self, harm: Harm, seat: int = 0, pid: int | None = None, seconds: float = 0.0) -> "Tale":
        self.at += 0.5
        self.done.append(Done(self.at, self.at + seconds, harm, seat, pid))
        return self

    def dies(self, supervisor: int = FIRST) -> "Tale":
        self.deaths[10 * supervisor] = self.at
        return self

    def loses_lease(self, supervisor: int = FIRST) -> "Tale":
        self.leases_lost[supervisor] = self.at
        return self

    def row(self) -> Row:
        return Row(
            TASK,
            self.kind,
            self.state or "",
            self.fence,
            self.retries,
            self.max_retries,
            self.result,
            self.due_in,
            None,
            present=not self.pruned,
        )

    def book(self, *rows: Row) -> Book:
        return Book(
            self.entries,
            self.executions,
            self.failures,
            rows or (self.row(),),
            [Tenure(FIRST, 10 * FIRST, 99.0), Tenure(SECOND, 10 * SECOND, 99.0)],
            self.done,
            self.deaths,
            self.leases_lost,
            {10 * FIRST: 0, 10 * SECOND: 1},
            kept=20.0 if self.pruned else None,
        )


def judged(book: Book) -> Iterator[Violation]:
    found = ways(book.entries)
    yield from check_tasks(book, found)
    yield from check_executions(book, found)
    yield from check_leases(book)
    yield from check_keys(book, found)
    yield from check_terms(book, found)


def violations(book: Book) -> set[str]:
    return {violation.what for violation in judged(book)}


RIGHT = {
    "completed": Tale().claim().run().end(),
    "retried": Tale(Kind.FLAKY).claim().run("raised").retry("raised").claim().run().end(),
    "failed": Tale(Kind.WRONG, max_retries=0).claim().run("raised").end("failed"),
    "killed itself": Tale(Kind.SUICIDE, max_retries=0).claim().run(None).end("failed", "crashed"),
    "worker killed": Tale().claim().run(None).harm(Harm.KILL_WORKER, pid=5).retry("crashed").claim().run().end(),
    "worker killed before it began": Tale().claim().harm(Harm.KILL_WORKER, pid=5).retry("crashed").claim().run().end(),
    "supervisor killed": Tale().claim().run(None).dies().reap().retry("lost").claim(SECOND).run().end(),
    "supervisor stopped": (
        Tale().claim().run().harm(Harm.STOP_SUPERVISOR, seconds=9.0).reap().retry("lost").loses_lease()
        .claim(SECOND).run().end()
    ),
    "released unbegun": Tale().claim().release().claim(SECOND).run().end(),
    "drained": Tale().claim().harm(Harm.TERMINATE_SUPERVISOR, pid=710).run("interrupted").release().claim().run().end(),
    "cancelled while queued": Tale().end("cancelled"),
    "cancelled while it ran": Tale().claim().run("interrupted").end("cancelled"),
    "pruned": Tale(Kind.FLAKY).claim().run("raised").retry("raised").claim().run().end().prune(),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_goes_by_the_rules_is_left_alone(name: str) -> None:
    assert list(judged(RIGHT[name].book())) == []


WRONG = {
    "ran twice under one claim": Tale().claim().run(None).run().end(),
    "ran without a claim": Tale().run().claim().run().end(),
    "completed without a run": Tale().claim().end(),
    "completed without a run of that claim": Tale().claim().run().release().claim(SECOND).end(),
    "unexplained failure": Tale().claim().run(None).retry("crashed").claim().run().end(),
    "unexplained failure of a healthy task": Tale().claim().run("raised").retry("raised").claim().run().end(),
    "unexplained failure by its time limit": Tale().claim().run(None).retry("timed_out").claim().run().end(),
    "unexplained failure of another worker": (
        Tale().claim().run(None, pid=5).harm(Harm.KILL_WORKER, pid=6).retry("crashed").claim().run().end()
    ),
    "unexplained loss": Tale().claim().run().reap().retry("lost").claim(SECOND).run().end(),
    "unexplained loss without a reap": Tale().claim().run(None).dies().retry("lost").claim(SECOND).run().end(),
    "unexplained loss of a lease": Tale().claim().run().loses_lease().reap().retry("lost").claim(SECOND).run().end(),
    "unexplained loss by another's harm": (
        Tale().claim().run().harm(Harm.STOP_SUPERVISOR, seat=1, seconds=9.0).loses_lease().reap().retry("lost")
        .claim(SECOND).run().end()
    ),
    "released although it ran": Tale().claim().run(None).release().claim(SECOND).run().end(),
    "failure of another run": (
        Tale(Kind.FLAKY).claim().run("raised").retry("raised", "ValueError: 6-99.0").claim().run().end()
    ),
    "too many attempts": (
        Tale(Kind.WRONG, 0).claim().run("raised").retry("raised").claim().run("raised").end("failed")
    ),
    "too few attempts": Tale(Kind.WRONG, 2).claim().run("raised").end("failed"),
    "stuck task": Tale(),
    "stuck task that is processing": Tale().claim().run(),
    "illegal transition: claimed without a fence": Tale().claim(fence=0).run().end(),
    "illegal transition: ended without a claim": Tale().end(),
    "pruned too early": Tale().claim().run().end().prune(age=10.0),
    "illegal transition: pruned while it was queued": Tale().prune(),
    "illegal transition: pruned twice": Tale().claim().run().end().prune().prune(),
    "illegal transition: queued after it was pruned": Tale().claim().run().end().prune().claim(),
    "illegal transition: settled by two": Tale(Kind.FLAKY).claim().run("raised").retry("raised").end(),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_must_not_be_is_found(name: str) -> None:
    assert any(name.startswith(what) for what in violations(WRONG[name].book())), violations(WRONG[name].book())


def test_a_lost_task_and_a_doubled_one_are_found() -> None:
    tale = Tale().claim().run().end()
    other = tale.row()._replace(task_id=2)
    assert "lost task" in violations(tale.book(other))
    assert "doubled task" in violations(tale.book(tale.row(), tale.row()))


def test_a_result_of_another_run_is_found() -> None:
    tale = Tale().claim().run().end()
    assert violations(tale.book(tale.row()._replace(result="6-99.0"))) == {"result of another run"}


def test_a_wrong_retry_count_is_found() -> None:
    tale = Tale(Kind.FLAKY).claim().run("raised").retry("raised").claim().run().end()
    assert violations(tale.book(tale.row()._replace(retry_count=0))) == {"retry count"}


def test_a_failure_that_is_recorded_twice_or_never_is_found() -> None:
    tale = Tale(Kind.FLAKY).claim().run("raised").retry("raised").claim().run().end()
    book = tale.book()
    assert violations(book._replace(failures=[*book.failures, *book.failures])) == {"failure record"}
    assert violations(book._replace(failures=[])) == {"failure record"}


def test_a_pruning_that_nobody_was_told_to_do_is_found() -> None:
    book = Tale().claim().run().end().prune().book()
    assert violations(book) == set()
    assert violations(book._replace(kept=None)) == {"pruned too early"}


def test_a_task_that_vanished_without_being_pruned_is_found() -> None:
    tale = Tale().claim().run().end()
    assert violations(tale.book(tale.row()._replace(present=False))) == {"lost task"}
    tale.prune()
    assert violations(tale.book(tale.row()._replace(present=True))) == {"lost task"}


@pytest.mark.parametrize("pruned", [False, True])
def test_a_failure_that_outlives_its_task_or_goes_before_it_is_found(pruned: bool) -> None:
    tale = Tale(Kind.FLAKY).claim().run("raised").retry("raised").claim().run().end()
    book = (tale.prune() if pruned else tale).book()
    assert violations(book) == set()
    failures = [failure._replace(present=pruned) for failure in book.failures]
    assert violations(book._replace(failures=failures)) == {"failure record"}


def test_a_claim_from_the_partition_of_another_is_found() -> None:
    book = Tale().claim().run().end().book()
    row = book.rows[0]._replace(partition=2)
    for bound, wrong in ((), False), ((1, 2), False), ((0, 1, 3), True):
        found = violations(book._replace(rows=[row], bound={0: bound, 1: (3,)}))
        assert found == ({"claimed from another's partition"} if wrong else set())


def test_a_reap_knows_no_partitions() -> None:
    tale = Tale().claim().run(None).dies().reap().retry("lost").claim().run().end()
    assert violations(tale.book()._replace(bound={1: (3,)})) == set()


def test_two_settles_under_one_fence_are_found() -> None:
    book = Tale().claim().run().end().book()
    last = next(entry for entry in book.entries if entry.op == "delete")
    assert "two settles" in violations(book._replace(entries=[*book.entries, last]))


def test_a_task_that_is_due_later_is_not_stuck() -> None:
    tale = Tale()
    assert violations(tale.book(tale.row()._replace(due_in=60.0))) == set()


def test_a_harm_to_the_server_explains_a_lost_lease() -> None:
    tale = Tale().claim().run().harm(Harm.CRASH_SERVER, seat=NO_SEAT).loses_lease()
    tale.reap().retry("lost").claim(SECOND).run().end()
    assert violations(tale.book()) == set()


def test_two_live_tasks_of_one_key_are_found() -> None:
    one = Tale().claim().run().end().book()
    later = [entry._replace(task_id=2, at=entry.at + 1) for entry in one.entries]
    rows = [one.rows[0]._replace(task_id=task_id, unique_key="key") for task_id in (1, 2)]
    book = one._replace(entries=[*one.entries, *later], rows=rows)
    assert "two tasks of one key" in violations(book)
    after = [entry._replace(at=entry.at + 9) for entry in later]
    assert "two tasks of one key" not in violations(book._replace(entries=[*one.entries, *after]))
