"""How much is claimed, and of what."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.model import Claim, Group
from pgsched.rules.demand import (
    AHEAD_SIZE,
    AHEAD_TASKS,
    HORIZON,
    LIMITS,
    NOTHING,
    Durations,
    Limits,
    Plan,
    ahead,
    occupied,
    plan,
    stale,
)

TINY, SHORT, LONG = 20e-6, 0.02, 5.0
TYPES = {"tiny": TINY, "short": SHORT, "long": LONG}


def known() -> Durations:
    durations = Durations()
    for task_type, seconds in TYPES.items():
        durations.observe(task_type, seconds)
    return durations


def group(task_type: str, priority: int = 0, due_in: float = -1.0, queue: str = "default") -> Group:
    return Group(task_type, queue, priority, 1, "then", due_in)


def waiting(task_type: str, count: int) -> list[Claim]:
    return [Claim(n, 1, task_type, "default", 0, "{}", 0, 3, None, 0.0, "then") for n in range(count)]


def planned(
    *groups: Group, slots: int = 2, free: int | None = None, occupied: int = 0, backlog: list[Claim] | None = None
) -> Plan:
    idle = slots - occupied if free is None else free
    return plan(groups, known(), slots=slots, free=idle, occupied=occupied, waiting=backlog or [])


def quotas(decided: Plan) -> list[tuple[str, int]]:
    return [(want.task_type, want.quota) for want in decided.wants]


class TestPlan:
    def test_tiny_tasks_stream_in_whole_batches(self) -> None:
        assert planned(group("tiny")) == planned(group("tiny"), free=0)
        assert quotas(planned(group("tiny"))) == [("tiny", LIMITS.batch)]

    def test_short_tasks_fill_the_horizon(self) -> None:
        assert quotas(planned(group("short"), slots=4)) == [("short", 10)]

    @pytest.mark.parametrize("task_type", ["long", "unknown"])
    def test_f71_long_and_unknown_types_are_taken_one_for_each_free_slot(self, task_type: str) -> None:
        assert quotas(planned(group(task_type), slots=4, occupied=1)) == [(task_type, 3)]
        assert planned(group(task_type), slots=4, occupied=4) == NOTHING

    def test_f71_nothing_is_taken_to_wait_behind_long_tasks(self) -> None:
        assert planned(group("tiny"), slots=4, occupied=4) == NOTHING

    def test_long_tasks_that_wait_have_their_slot_already(self) -> None:
        assert quotas(planned(group("long"), slots=4, backlog=waiting("unknown", 3))) == [("long", 1)]

    def test_a_stream_of_tiny_tasks_does_not_shut_out_a_long_one(self) -> None:
        assert quotas(planned(group("long"), free=0, backlog=waiting("tiny", 400))) == [("long", 2)]

    def test_long_tasks_leave_nothing_for_what_comes_after_them(self) -> None:
        decided = planned(group("long", priority=1), group("tiny"))
        assert quotas(decided) == [("long", 2), ("tiny", 2)]
        assert decided.total == 2, "tiny gets only what long lacks"

    def test_f75_nothing_lies_below_a_priority_that_could_not_take_all(self) -> None:
        decided = planned(group("tiny", priority=2), group("long", priority=1), group("short"))
        assert quotas(decided) == [("tiny", LIMITS.batch), ("long", 2)]
        assert decided.total == LIMITS.batch

    def test_f75_equal_types_below_each_other_take_all_that_is_left(self) -> None:
        decided = planned(*(group("short", priority=priority) for priority in (3, 2, 1)), slots=4)
        assert quotas(decided) == [("short", 10)] * 3
        assert decided.total == 10

    def test_no_claim_looks_into_more_groups_than_it_may(self) -> None:
        groups = [group("long", queue=str(number)) for number in range(LIMITS.groups + 1)]
        assert len(planned(*groups).wants) == LIMITS.groups

    def test_groups_that_are_not_due_are_not_wanted(self) -> None:
        assert planned(group("tiny", due_in=0.001)) == NOTHING
        assert quotas(planned(group("tiny", due_in=0.0))) == [("tiny", LIMITS.batch)]

    def test_order_is_priority_and_then_who_is_due_longest(self) -> None:
        decided = planned(
            group("tiny", queue="c", due_in=-9),
            group("tiny", queue="d", due_in=-10),
            group("tiny", queue="b", priority=2),
            group("tiny", queue="a", priority=10),
        )
        assert [want.queue for want in decided.wants] == ["a", "b", "d", "c"]
        assert decided.total == LIMITS.batch

    def test_f75_a_lower_priority_gets_only_what_the_higher_one_lacks(self) -> None:
        decided = planned(group("short", priority=1), group("long"), group("tiny"), slots=2)
        assert quotas(decided)[0] == ("short", decided.total)
        assert {want.task_type for want in decided.wants} > {"long"}

    def test_f75_what_waits_of_a_higher_priority_is_not_overtaken(self) -> None:
        found = group("short", priority=1), group("long")
        assert planned(*found, free=0, backlog=waiting("short", 10)) == NOTHING
        assert quotas(planned(group("long"), free=0, backlog=waiting("short", 10))) == [("long", 2)]

    def test_half_a_backlog_is_not_topped_up(self) -> None:
        half = LIMITS.waiting // 2
        assert planned(group("tiny"), free=0, backlog=waiting("tiny", half + 1)) == NOTHING
        assert quotas(planned(group("tiny"), free=0, backlog=waiting("tiny", half - 1))) == [("tiny", LIMITS.batch)]
        assert planned(group("short"), free=0, backlog=waiting("short", 3)) == NOTHING

    def test_a_full_backlog_takes_nothing(self) -> None:
        assert planned(group("tiny", priority=9), backlog=waiting("tiny", LIMITS.waiting)) == NOTHING

    def test_many_long_groups_may_each_fill_the_free_slots(self) -> None:
        decided = planned(*(group("long", queue=f"q{n}") for n in range(10)), slots=4)
        assert [want.quota for want in decided.wants] == [4] * 10
        assert decided.total == 4

    def test_many_short_groups_take_no_more_than_twice_the_horizon(self) -> None:
        decided = planned(*(group("short", queue=f"q{n}") for n in range(50)), slots=2)
        assert [want.quota for want in decided.wants][:5] == [5, 1, 1, 1, 1]
        assert decided.total <= 10

    def test_wants_have_no_floor(self) -> None:
        want = planned(group("tiny")).wants[0]
        assert (want.floor_run_at, want.floor_id) == (None, 0)


groups = st.builds(
    group,
    st.sampled_from([*TYPES, "unknown"]),
    st.integers(-3, 3),
    st.floats(-100, 100),
    st.sampled_from(["a", "b", "c"]),
)


@given(
    found=st.lists(groups, max_size=80),
    slots=st.integers(1, 64),
    busy=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    backlog=st.sampled_from([0, 1, 10, 400, 2000, LIMITS.waiting - 1, LIMITS.waiting, LIMITS.waiting + 500]),
    of_type=st.sampled_from([*TYPES, "unknown"]),
)
def test_a_plan_keeps_its_bounds(
    found: list[Group], slots: int, busy: tuple[float, float], backlog: int, of_type: str
) -> None:
    held = int(slots * busy[0])
    free = int((slots - held) * busy[1])
    limits = Limits()
    claims = waiting(of_type, backlog)
    decided = plan(found, known(), slots=slots, free=free, occupied=held, waiting=claims)

    assert decided.total <= max(0, min(limits.batch, limits.waiting - backlog))
    assert decided.total <= sum(want.quota for want in decided.wants)
    assert len(decided.wants) <= limits.groups
    assert all(0 < want.quota <= decided.total for want in decided.wants)
    assert bool(decided.wants) == bool(decided.total)
    places = slots - held - (backlog if of_type in ("long", "unknown") else 0)
    longs = [want.quota for want in decided.wants if want.task_type in ("long", "unknown")]
    assert min(sum(longs), decided.total) <= max(places, 0)
    # At worst the higher priorities have none of their short tasks, and the dearest ones fill the total.
    work, left = 0.0, decided.total
    for want in sorted(decided.wants, key=lambda want: -TYPES.get(want.task_type, 0.0)):
        if want.task_type in ("tiny", "short"):
            work += TYPES[want.task_type] * min(want.quota, left)
            left -= min(want.quota, left)
    assert work <= max(4 * HORIZON * places, 0) + 1e-9
    turns = [(-want.priority) for want in decided.wants]
    assert turns == sorted(turns)


def test_an_idle_slot_is_open_although_more_tasks_run_than_slots_stay() -> None:
    """The number of processes was lowered, and what is too much ends with its tasks."""
    assert plan([group("long")], known(), slots=4, free=1, occupied=7, waiting=[]).total == 1


class TestDurations:
    def test_nothing_is_known_at_first(self) -> None:
        assert Durations().get("a") is None
        assert Durations().is_long("a")

    def test_one_long_task_makes_its_type_long_and_many_short_ones_make_it_short_again(self) -> None:
        durations = Durations()
        durations.observe("a", TINY)
        assert not durations.is_long("a")
        durations.observe("a", 10.0)
        assert durations.get("a") == 10.0
        needed = 0
        while durations.is_long("a"):
            durations.observe("a", TINY)
            needed += 1
        assert 30 < needed < 50

    def test_attempts_that_never_started_say_nothing(self) -> None:
        durations = Durations()
        durations.observe("a", 0.0)
        assert durations.get("a") is None

    def test_a_process_that_was_preempted_now_and_then_does_not_stop_the_stream(self) -> None:
        durations, dice = Durations(), random.Random(1)
        streaming = 0
        for _ in range(10_000):
            durations.observe("a", 0.004 if dice.random() < 0.01 else TINY)
            streaming += ahead(durations, "a") >= AHEAD_TASKS // 4
        assert streaming > 8_000

    @given(st.lists(st.floats(1e-9, 1e6), min_size=1))
    def test_the_average_stays_between_the_extremes(self, seen: list[float]) -> None:
        durations = Durations()
        for seconds in seen:
            durations.observe("a", seconds)
        average = durations.get("a")
        assert average is not None
        assert min(seen) * (1 - 1e-9) <= average <= max(seen) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "tasks"),
    [(1e-9, 256), (9e-6, 256), (90e-6, 50), (1e-3, 4), (2e-3, 2), (4.9e-3, 1), (5e-3, 0), (9.0, 0)],
)
def test_how_many_may_wait_in_a_workers_socket(seconds: float, tasks: int) -> None:
    durations = Durations()
    assert ahead(durations, "a") == 0
    durations.observe("a", seconds)
    assert ahead(durations, "a") == tasks


def test_large_payloads_wait_in_no_socket() -> None:
    assert ahead(known(), "tiny", AHEAD_SIZE) > 0
    assert ahead(known(), "tiny", AHEAD_SIZE + 1) == 0


def test_nothing_is_taken_while_the_payloads_that_wait_are_large() -> None:
    for size, taken in ((1000, True), (1001, False)):
        held = [claim._replace(payload="x" * size) for claim in waiting("tiny", 10)]
        decided = plan([group("tiny")], known(), slots=2, free=1, occupied=0, waiting=held, limits=Limits(size=10_000))
        assert (decided != NOTHING) is taken


def test_occupied_counts_long_unknown_and_overdue_tasks() -> None:
    running = [("tiny", 0.001), ("tiny", 0.06), ("long", 0.0), ("unknown", 0.0), ("short", 0.049)]
    assert occupied(known(), running) == 3


@pytest.mark.parametrize(("waited", "free", "given_back"), [(0.9, 0, False), (1.1, 0, True), (9.0, 1, False)])
def test_f71_a_stale_backlog_is_given_back(waited: float, free: int, given_back: bool) -> None:
    assert stale(waited, free=free) is given_back
