"""What feeds the watchdog and what starves it, by a clock that is moved by hand."""

import asyncio
from typing import Any

import pytest

from pgsched.config import Settings
from pgsched.errors import DatabaseError
from pgsched.model import Identity
from pgsched.rules.lease import Trust
from pgsched.rules.states import SlotState, SupervisorState
from pgsched.supervisor.duty import Duty
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.liveness import Liveness, Part, patience
from pgsched.supervisor.supervisor import Supervisor
from pgsched.supervisor.vitals import Vitals
from tests.unit.test_supervisor import Deaf, RememberingPool

PATIENCE = {Part.CLAIMS: 10.0, Part.LEASE: 20.0, Part.SLOTS: 30.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("part", Part)
def test_each_part_has_a_patience_of_its_own(clock: Clock, part: Part) -> None:
    liveness = Liveness(PATIENCE, clock)
    others = [each for each in Part if each is not part]
    clock.now += PATIENCE[part]
    liveness.moved(*others)
    assert liveness.stuck() == []
    clock.now += 0.001
    liveness.moved(*others)
    assert liveness.stuck() == [part]
    liveness.moved(part)
    assert liveness.stuck() == []


def test_all_begin_anew(clock: Clock) -> None:
    """The start of the workers may have taken as long as it likes."""
    liveness = Liveness(PATIENCE, clock)
    clock.now += 1000
    assert liveness.stuck() == list(Part)
    liveness.moved()
    assert liveness.stuck() == []


@pytest.mark.parametrize("state", SlotState)
def test_slots_move_while_one_of_them_has_a_worker_that_is_ready(clock: Clock, state: SlotState) -> None:
    liveness = Liveness(PATIENCE, clock)
    clock.now += 31
    liveness.moved(Part.CLAIMS, Part.LEASE)
    liveness.tended({**dict.fromkeys(SlotState, 0), state: 1})
    assert (liveness.stuck() == []) == (state in ("idle", "busy", "stopping"))


def test_nothing_healthy_takes_so_long() -> None:
    """Longest of all rest a claim loop without hints, a lease between renewals, a slot whose worker must import."""
    settings = Settings(app="a:app", processes=1, poll_interval=3600.0, lease=120.0, db_timeout=300.0)
    given = patience(settings)
    # A connection, what makes it a session, horizon, discover, exchange, set_listening.
    assert given[Part.CLAIMS] > 3600 + 6 * 300
    assert given[Part.LEASE] > 120 / 3 + 3 * 300
    assert given[Part.SLOTS] > 2 * 60


def test_a_pool_whose_workers_may_take_long_to_start_is_given_that_time() -> None:
    pool: Any = RememberingPool()
    settings = Settings(app="a:app", processes=1, boot_timeout=600.0)
    vitals = Vitals(
        settings, Trust(15.0), pool, Holdings(), state=lambda: SupervisorState.RUNNING, exchange=lambda: None
    )
    clock = Clock()
    vitals.liveness._clock = clock
    vitals.liveness.moved()
    clock.now += 1200
    vitals.liveness.moved(Part.CLAIMS, Part.LEASE)
    assert vitals.stuck() == []


@pytest.mark.parametrize("failing", [True, False])
async def test_a_turn_counts_whether_or_not_it_succeeds(failing: bool) -> None:
    turned = asyncio.Event()

    async def turn() -> float:
        if failing:
            raise DatabaseError("away")
        return 60.0

    observer: Any = Deaf()
    running = asyncio.create_task(Duty("renewal", turn, observer, on_turn=turned.set).run())
    async with asyncio.timeout(10):
        await turned.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _supervisor(store: Any) -> Supervisor:
    pool: Any = RememberingPool()
    return Supervisor(Settings(app="a:app", processes=1), store, pool, Deaf(), version="0")


class Away:
    """A store whose database refuses every registration, and lets time pass by meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.attempts = 0

    async def register(self, identity: Identity, lease: float) -> int:
        self.attempts += 1
        self.clock.now += 60.0
        raise DatabaseError("away")


async def test_an_outage_does_not_starve_the_watchdog(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease was lost, and every attempt to get another fails, for hours."""
    store: Any = Away(clock)
    supervisor = _supervisor(store)
    liveness = supervisor.vitals.liveness = Liveness(patience(supervisor.settings), clock)
    supervisor.state = SupervisorState.RUNNING
    supervisor.changes.identity = Identity(
        host="host", boot_id="boot", pid_namespace=1, pid=2, started_ticks=3, processes=1
    )
    stuck: list[str] = []

    async def rest(seconds: float) -> None:
        liveness.moved(Part.SLOTS)
        stuck.extend(supervisor.vitals.stuck())
        if store.attempts >= 60:
            raise KeyError

    monkeypatch.setattr("pgsched.supervisor.supervisor.asyncio.sleep", rest)
    with pytest.raises(KeyError):
        await supervisor._register()
    assert stuck == []
    clock.now += 1000
    assert supervisor.vitals.stuck() == list(Part)


@pytest.mark.parametrize("state", [state for state in SupervisorState if state is not SupervisorState.RUNNING])
def test_who_starts_or_stops_has_limits_of_his_own(clock: Clock, state: SupervisorState) -> None:
    supervisor = _supervisor(None)
    supervisor.vitals.liveness = Liveness(PATIENCE, clock)
    clock.now += 1000
    supervisor.state = state
    assert supervisor.vitals.stuck() == []
