"""What the supervisor itself decides between its duties, on a pool that only remembers."""

from collections.abc import Sequence
from typing import Any

from pgsched.config import Settings
from pgsched.model import Claim, Outcome, OutcomeKind, TaskType, Verdict
from pgsched.pool.pool import PoolSettings, Running
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

    def dispatch(self, claim: Claim, ahead: int, within: float) -> bool:
        self.dispatched.append(claim.task_id)
        return True

    def flush(self) -> list[Claim]:
        return []

    def running(self) -> list[Running]:
        return []


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
