"""What the supervisor itself decides between its duties, on a pool that only remembers."""

import asyncio
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pgsched.config import Settings
from pgsched.model import Claim, Outcome, OutcomeKind, TaskType, Verdict
from pgsched.pool.pool import PoolSettings, Running
from pgsched.rules.lease import margin
from pgsched.rules.states import SupervisorState
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.supervisor import Supervisor


def claim(task_id: int) -> Claim:
    return Claim(task_id, 1, "a", "default", 0, "{}", 0, 3, None, 0.0, "")


class RememberingPool:
    settings = PoolSettings(app="a:app", processes=1)

    def __init__(self) -> None:
        self.dispatched: list[int] = []
        self.task_types: dict[str, TaskType] = {}
        self.runs: list[Running] = []
        self.stopped: list[tuple[int, OutcomeKind, int | None, float | None]] = []
        self.recalls = 0

    def dispatch(self, claim: Claim, ahead: int, within: float) -> bool:
        self.dispatched.append(claim.task_id)
        return True

    def free(self) -> int:
        return 0

    def flush(self) -> list[Claim]:
        return []

    def running(self) -> list[Running]:
        return self.runs

    def slots(self) -> dict[str, int]:
        return {"idle": 1}

    def recall(self) -> list[Claim]:
        self.recalls += 1
        return []

    def stop_task(
        self, task_id: int, kind: OutcomeKind, reason: str, *, fence: int | None = None, grace: float | None = None
    ) -> None:
        self.stopped.append((task_id, kind, fence, grace))


class LastWords:
    """An exchange that has nothing to write, and the store that hears of it."""

    supervisor_id = 7
    last_turn = 0.0

    def __init__(self) -> None:
        self.left = 0

    def forget(self) -> list[Verdict]:
        return []

    def settle(self, verdict: Verdict) -> None: ...

    def conclude(self) -> None: ...

    async def cease(self) -> None: ...

    async def halt(self) -> None: ...

    def clock(self) -> float:
        return 0.0

    def unsettled(self) -> int:
        return 0

    async def strays(self, supervisor_id: int, known: list[int]) -> None: ...

    async def deregister(self, supervisor_id: int) -> None:
        self.left = supervisor_id


class Deaf:
    """An observer that hears nothing."""

    def claimed(self, claims: Sequence[Claim], *, skipped: int, failed: int, seconds: float) -> None: ...

    def settled(self, verdicts: Sequence[Verdict], *, fenced: int, seconds: float) -> None: ...

    def outcome(self, claim: Claim, outcome: Outcome, verdict: Verdict | None) -> None: ...

    def reaped(self, claims: Sequence[Claim]) -> None: ...

    def sampled(self, name: str, value: float, **labels: str) -> None: ...

    def event(self, name: str, level: int, **fields: object) -> None: ...


def supervisor(pool: Any, state: SupervisorState) -> Supervisor:
    made = Supervisor(Settings(app="a:app", processes=1, lease=2.0), None, pool, Deaf(), version="0")  # type: ignore[arg-type]
    made.state = state
    made._backlog.push([claim(1)])
    return made


def test_nothing_is_begun_when_the_lease_may_be_over() -> None:
    pool = RememberingPool()
    frozen = supervisor(pool, SupervisorState.RUNNING)
    frozen._trust.renewed(lease_clock() - 60)
    frozen._feeder.feed()
    assert pool.dispatched == []
    frozen._trust.renewed(lease_clock())
    frozen._feeder.feed()
    assert pool.dispatched == [1]


def test_nothing_is_begun_once_it_drains() -> None:
    pool = RememberingPool()
    draining = supervisor(pool, SupervisorState.DRAINING)
    draining._trust.renewed(lease_clock())
    draining._feeder.feed()
    assert pool.dispatched == []


def test_an_end_that_leaves_nothing_to_write_wakes_the_exchange() -> None:
    """A slot is free, and what is known to be due need not wait for the next look."""
    served = supervisor(RememberingPool(), SupervisorState.RUNNING)
    served._feeder.soon = lambda: None  # type: ignore[method-assign]
    woken: list[bool] = []
    served._exchange = SimpleNamespace(rest=SimpleNamespace(wake=lambda: woken.append(True)))  # type: ignore[assignment]
    served._holdings.add([claim(1)])
    served.on_outcomes([(claim(1), Outcome(OutcomeKind.CANCELLED, 0.0))])
    assert woken


def test_what_is_reported_of_a_claim_that_is_not_held_changes_nothing() -> None:
    """It was earned under a lease that is gone, or belongs to a claim that has been closed."""
    pool = RememberingPool()
    served = supervisor(pool, SupervisorState.RUNNING)
    concluded: list[int] = []
    served._concluder._settle = lambda verdict: concluded.append(verdict.claim.fence)
    served._feeder.soon = lambda: None  # type: ignore[method-assign]
    returned = Outcome(OutcomeKind.RETURNED, 0.5)
    served.on_outcomes([(claim(1), returned)])
    served._holdings.add([claim(1)._replace(fence=2)])
    served.on_outcomes([(claim(1), returned), (claim(1)._replace(fence=2), returned)])
    assert concluded == [2]


async def test_a_lease_that_is_lost_takes_everything_with_it_before_the_next_one_begins() -> None:
    pool = RememberingPool()
    pool.runs = [Running(claim(2), 0, 100, 5.0)]
    served = supervisor(pool, SupervisorState.RUNNING)
    served._holdings.add([claim(1), claim(2)])
    exchange: Any = LastWords()
    voided = asyncio.create_task(served._void(exchange, 7))
    for _ in range(9):
        await asyncio.sleep(0)
    [(*stopped, grace)] = pool.stopped
    assert stopped == [2, OutcomeKind.CANCELLED, 1]
    assert grace == pytest.approx(margin(2.0) / 2, rel=0.1)
    assert (len(served._holdings), len(served._backlog), pool.recalls) == (0, 0, 1)
    assert exchange.supervisor_id == 0, "it is not given up: what ran counts as an attempt"
    pool.runs = [Running(claim(3), 0, 100, 0.0)]
    served._stopping.noted()
    for _ in range(9):
        await asyncio.sleep(0)
    assert not voided.done(), "a task that had been sent ahead runs on"
    assert pool.stopped[-1][:2] == (3, OutcomeKind.CANCELLED)
    pool.runs = []
    served._stopping.noted()
    await voided


async def test_the_next_lease_does_not_wait_for_what_the_kernel_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsched.supervisor.supervisor.END_WITHIN", 0.01)
    pool = RememberingPool()
    pool.runs = [Running(claim(2), 0, 100, 5.0)]
    served = supervisor(pool, SupervisorState.RUNNING)
    told: list[tuple[str, object]] = []
    monkeypatch.setattr(served._observer, "event", lambda name, level, **fields: told.append((name, fields)))
    exchange: Any = LastWords()
    began = lease_clock()
    await asyncio.wait_for(served._void(exchange, 7), 20.0)
    assert lease_clock() - began >= margin(2.0) / 2, "before that it may not have been sent SIGKILL"
    assert told[1:] == [("not_ended", {"tasks": [2]})]


async def test_a_drain_does_not_wait_for_what_the_kernel_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsched.supervisor.supervisor.END_WITHIN", 0.01)
    pool = RememberingPool()
    pool.settings = PoolSettings(app="a:app", processes=1, grace=0.01)
    pool.runs = [Running(claim(1), 0, 100, 5.0)]
    served = supervisor(pool, SupervisorState.RUNNING)
    served.settings = dataclasses.replace(served.settings, drain_timeout=0.0)
    exchange: Any = LastWords()
    served._exchange = exchange
    served.stop()
    await asyncio.wait_for(served._drain_when_asked(), 20.0)
    assert [stopped[:2] for stopped in pool.stopped] == [(1, OutcomeKind.INTERRUPTED)]


@pytest.mark.parametrize("held", [True, False])
async def test_a_lease_is_given_up_only_when_nothing_is_held(held: bool) -> None:
    served = supervisor(RememberingPool(), SupervisorState.STOPPING)
    served._holdings.add([claim(1)] if held else [])
    exchange: Any = LastWords()
    served._store = exchange
    await served._say_last_words(exchange)
    assert exchange.left == (0 if held else 7)


@pytest.mark.parametrize("state", [SupervisorState.RUNNING, SupervisorState.DRAINING])
def test_what_waited_behind_a_task_that_killed_its_worker_waits_again_unless_it_drains(
    state: SupervisorState, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = supervisor(RememberingPool(), state)
    served._feeder.soon = lambda: None  # type: ignore[method-assign]
    concluded: list[int] = []
    monkeypatch.setattr(served._concluder, "conclude", lambda claim, _: concluded.append(claim.task_id))
    served._holdings.add([claim(2), claim(3)])
    begun, unbegun = Outcome(OutcomeKind.INTERRUPTED, 0.5), Outcome(OutcomeKind.INTERRUPTED, 0.0)
    served.on_outcomes([(claim(2), unbegun), (claim(3), begun)])
    running = state is SupervisorState.RUNNING
    assert concluded == ([3] if running else [2, 3])
    assert [one.task_id for one in served._backlog.claims()] == ([2, 1] if running else [1])


def test_claims_that_do_not_come_round_are_no_health() -> None:
    served = supervisor(RememberingPool(), SupervisorState.RUNNING)
    served._trust.renewed(lease_clock())
    exchange: Any = LastWords()
    served._exchange = exchange
    within = served.settings.poll_interval + served.settings.db_timeout
    for late, well in ((0.0, True), (within + 1.0, False)):
        exchange.last_turn = lease_clock() - late
        assert served.vitals.health()[0] is well
