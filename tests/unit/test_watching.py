"""The watcher's turn: each claim is judged by its own fence."""

import asyncio
from collections.abc import Sequence

import pytest

from pgsched.errors import DatabaseError
from pgsched.model import Claim, Outcome, OutcomeKind
from pgsched.pool.pool import Running
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.watching import LONG, REFRESH, Watcher


def claim(task_id: int, fence: int = 1) -> Claim:
    return Claim(task_id, fence, "a", "default", 0, "{}", 0, 3, None, 0.0, "")


class ScriptedPool:
    def __init__(self) -> None:
        self.runs: list[Running] = []
        self.stopped: list[tuple[int, OutcomeKind, int | None]] = []
        self.idle = 0
        self.recalls = 0

    def running(self) -> list[Running]:
        return self.runs

    def free(self) -> int:
        return self.idle

    def recall(self) -> list[Claim]:
        self.recalls += 1
        return []

    def stop_task(self, task_id: int, kind: OutcomeKind, reason: str, *, fence: int | None = None) -> None:
        self.stopped.append((task_id, kind, fence))


class ScriptedStore:
    def __init__(self) -> None:
        self.ours: set[tuple[int, int]] = set()
        self.asked: list[list[tuple[int, int]]] = []
        self.away = False

    async def confirm(self, supervisor_id: int, claims: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        if self.away:
            raise DatabaseError("away")
        self.asked.append(list(claims))
        return self.ours & set(claims)


class Bench:
    def __init__(self, interval: float = 1.0) -> None:
        self.pool = ScriptedPool()
        self.store = ScriptedStore()
        self.holdings = Holdings()
        self.now = 0.0
        self.backlog = Backlog(lambda: self.now)
        self.outcomes: list[tuple[int, OutcomeKind]] = []
        self.watcher = Watcher(
            self.store,  # type: ignore[arg-type]
            self.pool,  # type: ignore[arg-type]
            self.holdings,
            self.backlog,
            supervisor_id=7,
            interval=interval,
            on_outcome=self._heard,
        )

    def _heard(self, claim: Claim, outcome: Outcome) -> None:
        self.outcomes.append((claim.task_id, outcome.kind))

    def runs(self, one: Claim, seconds: float) -> None:
        self.pool.runs.append(Running(one, 0, 100, seconds))

    def turn(self) -> float:
        return asyncio.run(self.watcher.turn())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_only_what_runs_for_long_is_asked_about(bench: Bench) -> None:
    bench.runs(claim(1), LONG)
    bench.runs(claim(2), LONG / 2)
    bench.store.ours = {(1, 1)}
    bench.turn()
    assert bench.store.asked == [[(1, 1)]]
    assert bench.pool.stopped == []


def test_a_run_that_was_superseded_is_stopped_although_a_later_claim_of_its_task_is_ours(bench: Bench) -> None:
    bench.runs(claim(1, fence=5), LONG)
    bench.runs(claim(1, fence=8), LONG)
    bench.holdings.add([claim(1, fence=8)])
    bench.store.ours = {(1, 8)}
    bench.turn()
    assert bench.pool.stopped == [(1, OutcomeKind.CANCELLED, 5)]


def test_only_the_run_that_is_meant_is_stopped(bench: Bench) -> None:
    """An earlier claim of the task runs; a later one, which waits, has been cancelled."""
    bench.runs(claim(1, fence=5), LONG / 2)
    bench.holdings.add([claim(1, fence=8)])
    bench.backlog.push([claim(1, fence=8)])
    bench.store.ours = {(1, 5)}
    bench.watcher.hint()
    bench.turn()
    assert bench.pool.stopped == []
    assert bench.outcomes == [(1, OutcomeKind.CANCELLED)]


def test_after_a_hint_what_waits_is_asked_about_too_and_never_begins_when_it_is_lost(bench: Bench) -> None:
    bench.holdings.add([claim(1), claim(2)])
    bench.backlog.push([claim(1), claim(2)])
    bench.store.ours = {(2, 1)}
    bench.turn()
    assert bench.store.asked == []
    bench.watcher.hint()
    bench.turn()
    assert bench.outcomes == [(1, OutcomeKind.CANCELLED)]
    assert [one.task_id for one in bench.backlog.claims()] == [2]


def test_thousands_that_are_cancelled_are_dropped_at_once(bench: Bench) -> None:
    claims = [claim(number) for number in range(100)]
    bench.holdings.add(claims)
    bench.backlog.push(claims)
    bench.watcher.hint()
    bench.turn()
    assert len(bench.outcomes) == 100
    assert bench.pool.recalls == 1


def test_a_hint_survives_a_database_that_is_away(bench: Bench) -> None:
    bench.holdings.add([claim(1)])
    bench.watcher.hint()
    bench.store.away = True
    with pytest.raises(DatabaseError):
        bench.turn()
    bench.store.away = False
    bench.turn()
    assert bench.store.asked == [[(1, 1)]]


def test_however_seldom_it_polls_it_looks_once_a_minute() -> None:
    assert Bench(interval=3600.0).turn() == REFRESH


def test_what_waits_behind_long_tasks_is_given_back(bench: Bench) -> None:
    bench.backlog.push([claim(1)])
    bench.now = 1.5
    bench.turn()
    assert bench.outcomes == [(1, OutcomeKind.INTERRUPTED)]


def test_a_claim_that_ended_while_it_was_asked_about_takes_no_later_one_with_it(bench: Bench) -> None:
    plain = bench.store.confirm

    async def confirm(supervisor_id: int, claims: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        bench.holdings.remove(claim(1, fence=5))
        bench.holdings.add([claim(1, fence=8)])
        bench.backlog.push([claim(1, fence=8)])
        return await plain(supervisor_id, claims)

    bench.store.confirm = confirm  # type: ignore[method-assign]
    bench.holdings.add([claim(1, fence=5)])
    bench.watcher.hint()
    bench.turn()
    assert bench.outcomes == []
    assert [one.fence for one in bench.backlog.claims()] == [8]


def test_after_a_hint_a_run_that_is_in_no_book_any_more_is_asked_about_too(bench: Bench) -> None:
    bench.runs(claim(1, fence=5), LONG / 2)
    bench.watcher.hint()
    bench.turn()
    assert bench.pool.stopped == [(1, OutcomeKind.CANCELLED, 5)]
