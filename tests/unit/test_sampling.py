"""What the samplers report, and that what is unknown is not passed off as known."""

import math
from collections.abc import Mapping

import pytest

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.rules.lease import Trust
from pgsched.store.store import Burden, Depth, Depths, TableSize
from pgsched.supervisor import sampling
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.sampling import INTERVAL, MOST_NAMES, OTHER, SHARE, Books, BurdenSampler, Sampler
from tests.unit.test_supervisor import Deaf


class Gauges(Deaf):
    """An observer that keeps the last value of each series."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}

    def sampled(self, name: str, value: float, **labels: str) -> None:
        self.values[(name, *labels.values())] = value


class StoreOf:
    """Answers with what a test has put there; None: the database is away."""

    depths: Depths | None = None
    burdened: Burden | None = None

    async def depth(self) -> Depths:
        if self.depths is None:
            raise DatabaseError("away")
        return self.depths

    async def burden(self) -> Burden:
        if self.burdened is None:
            raise DatabaseError("away")
        return self.burdened


class PoolOf:
    """Figures of a pool."""

    def slots(self) -> Mapping[str, int]:
        return {"idle": 1, "busy": 2}

    def busy_seconds(self) -> Mapping[int, float]:
        return {0: 3.0, 1: 4.5}

    def cpu_seconds(self) -> Mapping[str, float]:
        return {"a": 7.0}


@pytest.fixture
def gauges() -> Gauges:
    return Gauges()


@pytest.fixture
def store() -> StoreOf:
    return StoreOf()


async def test_a_queue_that_has_run_empty_is_told_as_empty(gauges: Gauges, store: StoreOf) -> None:
    sampler = Sampler(store, gauges)  # type: ignore[arg-type]
    store.depths = Depths([Depth("mail", 5, 2, 30.0)], {"send": 4})
    await sampler.turn()
    assert gauges.values == {
        ("queue_depth", "mail", "queued"): 5,
        ("queue_depth", "mail", "processing"): 2,
        ("oldest_due_seconds", "mail"): 30.0,
        ("due_tasks", "send"): 4,
    }
    store.depths = Depths([], {})
    await sampler.turn()
    assert set(gauges.values.values()) == {0}


async def test_what_cannot_be_counted_is_unknown_and_known_again_later(gauges: Gauges, store: StoreOf) -> None:
    sampler = Sampler(store, gauges)  # type: ignore[arg-type]
    store.depths = known = Depths([Depth("mail", 5, 2, 30.0)], {"send": 4})
    await sampler.turn()
    store.depths = None
    with pytest.raises(DatabaseError):
        await sampler.turn()
    assert len(gauges.values) == 4
    assert all(map(math.isnan, gauges.values.values()))
    store.depths = known
    await sampler.turn()
    assert gauges.values["due_tasks", "send"] == 4


async def test_a_count_that_takes_too_long_is_repeated_ever_more_seldom(
    gauges: Gauges, store: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first time it may be the server's bad moment; in the long run it takes a hundredth of the time."""
    now = 0.0

    async def late() -> Depths:
        nonlocal now
        now += 9.0
        raise DeadlineError("canceling statement due to statement timeout")

    sampler = Sampler(store, gauges, clock=lambda: now)  # type: ignore[arg-type]
    store.depths = Depths([Depth("mail", 5, 2, 30.0)], {"send": 4})
    await sampler.turn()
    with monkeypatch.context() as patched:
        patched.setattr(store, "depth", late)
        pauses = [await sampler.turn() for _ in range(10)]
    assert pauses[:3] == [2 * INTERVAL, 4 * INTERVAL, 8 * INTERVAL]
    assert pauses[-1] == SHARE * 9.0
    assert all(map(math.isnan, gauges.values.values()))
    assert await sampler.turn() == INTERVAL
    assert gauges.values["due_tasks", "send"] == 4


async def test_names_beyond_the_bound_share_a_series_that_sums_them_up(gauges: Gauges, store: StoreOf) -> None:
    sampler = Sampler(store, gauges)  # type: ignore[arg-type]
    names = [f"{number:03}" for number in range(MOST_NAMES + 10)]
    store.depths = Depths(
        [Depth(name, 2, 1, float(number)) for number, name in enumerate(names)], dict.fromkeys(names, 3)
    )
    for _ in range(2):
        await sampler.turn()
        assert gauges.values["queue_depth", OTHER, "queued"] == 20
        assert gauges.values["oldest_due_seconds", OTHER] == MOST_NAMES + 9
        assert gauges.values["due_tasks", OTHER] == 30
        assert len(gauges.values) == 4 * (MOST_NAMES + 1)


async def test_a_burden_that_may_not_be_seen_is_unknown(gauges: Gauges, store: StoreOf) -> None:
    sampler = BurdenSampler(store, gauges)  # type: ignore[arg-type]
    store.burdened = Burden(None, 7, [TableSize("t", 10, None, 8192)])
    assert await sampler.turn() == sampling.BURDEN_INTERVAL
    unknown = {name for name, value in gauges.values.items() if math.isnan(value)}
    assert unknown == {("oldest_snapshot_seconds",), ("table_dead_rows", "t")}
    assert gauges.values["oldest_snapshot_transactions",] == 7
    assert gauges.values["table_bytes", "t"] == 8192
    store.burdened = None
    with pytest.raises(DatabaseError):
        await sampler.turn()
    assert all(map(math.isnan, gauges.values.values()))


async def test_the_books_need_no_database(gauges: Gauges) -> None:
    trust = Trust(15.0)
    books = Books(trust, gauges, PoolOf(), lease=15.0, gauges=lambda: {"held": 3.0})  # type: ignore[arg-type]
    await books.turn()
    assert gauges.values["lease_remaining_seconds",] == 0, "there is none yet"
    trust.renewed(lease_clock())
    await books.turn()
    assert 0 < gauges.values.pop(("lease_remaining_seconds",)) <= 13.5
    assert gauges.values == {
        ("held",): 3,
        ("slots", "idle"): 1,
        ("slots", "busy"): 2,
        ("slot_busy_seconds", "0"): 3.0,
        ("slot_busy_seconds", "1"): 4.5,
        ("task_cpu_seconds", "a"): 7.0,
        ("lease_seconds",): 15.0,
    }
