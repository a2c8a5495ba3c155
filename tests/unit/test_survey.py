"""The survey: which groups are due, from where on to claim, and when to look again."""

import math

import pytest

from pgsched.model import Claim, Group, Want
from pgsched.supervisor.survey import (
    BURST,
    FULL_SCAN,
    FULL_THRIFT,
    LONGEST_BLIND,
    LONGEST_WAIT,
    REFUSED_FOR,
    REMEMBERED,
    THRIFT,
    Survey,
)


def group(name: str = "a", due_in: float = -1.0, priority: int = 0, head: int = 1) -> Group:
    return Group(name, "default", priority, head, f"run_at {head}", due_in)


def claim(task_id: int, name: str = "a", priority: int = 0) -> Claim:
    return Claim(task_id, 1, name, "default", priority, "{}", 0, 3, None, 0.0, f"run_at {task_id}")


def want(name: str = "a", quota: int = 2, priority: int = 0) -> Want:
    return Want(name, "default", priority, quota)


def test_a_fresh_survey_wants_a_scan_at_once_and_knows_nothing() -> None:
    survey = Survey()
    assert survey.wants_scan(0.0)
    assert survey.due(0.0) == []
    assert survey.next_due(0.0) == math.inf


def test_found_groups_are_due_when_their_time_comes() -> None:
    survey = Survey()
    survey.found([group("a", due_in=-2.0), group("b", due_in=3.0)], now=10.0, seconds=0.0)
    assert [g.task_type for g in survey.due(10.0)] == ["a"]
    assert survey.next_due(11.0) == -3.0
    assert {g.task_type for g in survey.due(13.0)} == {"a", "b"}
    assert next(g for g in survey.due(13.5) if g.task_type == "b").due_in == -0.5


def test_groups_of_types_that_are_not_served_any_more_are_forgotten_and_those_of_new_ones_looked_for() -> None:
    survey = Survey()
    survey.found([group("a"), group("b")], now=10.0, seconds=0.0)
    assert not survey.incomplete
    survey.keep(["b", "c"])
    assert [g.task_type for g in survey.due(10.0)] == ["b"]
    assert survey.incomplete


def test_a_group_of_each_partition_is_one_of_its_own() -> None:
    survey = Survey()
    survey.found([group(head=7)._replace(partition=part) for part in (0, 2)], now=0.0, seconds=0.0)
    assert [found.partition for found in survey.due(0.0)] == [0, 2]
    first, second = (want()._replace(partition=part) for part in (0, 2))
    survey.claimed([first, second], [claim(9)._replace(partition=2)], total=1)
    assert [found.floor_id for found in survey.floored([first, second])] == [7, 9]


def test_a_group_that_was_refused_is_left_alone_for_a_while() -> None:
    survey = Survey()
    survey.found([group("a"), group("b")], now=0.0, seconds=0.0)
    survey.claimed([want("a"), want("b")], [claim(1, "b")], total=4)
    survey.refused([want("a")], now=0.0)
    survey.woken(0.5)
    assert [g.task_type for g in survey.due(0.5)] == ["b"]
    assert [g.task_type for g in survey.remembered(0.5)] == ["b"]
    survey.found([group("a"), group("b", due_in=100.0)], now=1.0, seconds=0.0)
    assert survey.due(1.0) == []
    assert survey.next_due(1.0) == REFUSED_FOR - 1.0
    assert [g.task_type for g in survey.due(REFUSED_FOR)] == ["a"]
    survey.found([group("a")], now=REFUSED_FOR, seconds=0.0)
    assert [g.task_type for g in survey.due(REFUSED_FOR)] == ["a"]


def test_wants_start_at_the_head_and_then_where_the_last_claim_ended() -> None:
    survey = Survey()
    survey.found([group(head=7)], now=0.0, seconds=0.0)
    assert survey.floored([want()])[0][4:6] == ("run_at 7", 7)
    survey.claimed([want()], [claim(7), claim(9)], total=2)
    assert survey.floored([want()])[0][4:6] == ("run_at 9", 9)
    assert survey.due(0.0), "a full claim leaves the group due"


def test_rows_are_passed_over_behind_our_own_last_claim_and_never_right_after_a_scan() -> None:
    survey = Survey()
    for now in (0.0, 1.0):
        survey.found([group(head=7)], now=now, seconds=0.0)
        assert [floored.passing for floored in survey.floored([want()])] == [False]
        survey.claimed([want()], [], total=2)
        assert [floored.passing for floored in survey.floored([want()])] == [False]
        survey.claimed([want()], [claim(7), claim(9)], total=2)
        assert [floored.passing for floored in survey.floored([want()])] == [True]


def test_a_short_claim_makes_its_group_quiet_and_asks_for_a_scan() -> None:
    survey = Survey()
    survey.found([group()], now=0.0, seconds=0.001)
    assert not survey.wants_scan(0.0)
    survey.claimed([want(quota=5)], [claim(1)], total=5)
    assert survey.due(0.0) == []
    assert survey.incomplete
    assert survey.wants_scan(0.0)


def test_after_a_rest_a_few_scans_may_follow_one_another_and_then_only_thrifty_ones() -> None:
    survey = Survey()
    seconds = 1 / 1024
    for _ in range(BURST):
        survey.doubt()
        assert survey.wants_scan(50.0)
        survey.found([], now=50.0, seconds=seconds)
    survey.doubt()
    later = 50.0 + THRIFT * seconds
    assert not survey.wants_scan(later - 1e-6)
    assert survey.wants_scan(later)
    survey.found([], now=later, seconds=seconds)
    survey.doubt()
    assert not survey.wants_scan(later), "one scan does not earn another burst"


def scans(survey: Survey, begin: float, end: float, *, claimed: bool) -> int:
    """How often it looks in that time, when one row is due all the time and can be claimed or not."""
    now, count = begin, 0
    while (now := now + max(survey.scan_in(now), 0.001)) < end:
        survey.found([group()], now=now, seconds=0.0003)
        survey.claimed([want(quota=1)], [claim(1)] if claimed else [], total=5)
        survey.doubt()
        count += 1
    return count


def test_a_row_that_somebody_keeps_locked_is_looked_for_less_and_less() -> None:
    survey = Survey()
    assert scans(survey, 0.0, 10.0, claimed=True) > 1000
    assert scans(survey, 10.0, 20.0, claimed=False) < 40
    assert 5 <= scans(survey, 20.0, 30.0, claimed=False) <= 15, "as often as in any case"
    survey.woken(30.0)
    assert survey.scan_in(30.0) <= 0, "a hint is about other rows"
    assert scans(survey, 30.0, 30.1, claimed=False) > 5
    assert scans(survey, 40.0, 50.0, claimed=True) > 1000, "it was let go"


def test_a_claim_cut_by_its_total_says_nothing_of_the_groups_behind() -> None:
    survey = Survey()
    survey.found([group("a"), group("b")], now=0.0, seconds=0.0)
    survey.claimed([want("a", 2), want("b", 2)], [claim(1), claim(2)], total=2)
    assert {g.task_type for g in survey.due(0.0)} == {"a", "b"}
    assert not survey.incomplete


def test_a_hint_tries_the_remembered_groups_before_the_next_scan() -> None:
    survey = Survey()
    survey.found([group("a")], now=0.0, seconds=0.0)
    survey.found([], now=0.1, seconds=0.0)
    assert survey.due(0.2) == []
    survey.woken(0.2)
    assert [g.task_type for g in survey.due(0.2)] == ["a"]
    assert not survey.wants_scan(0.2), "the claim comes first"
    assert survey.wants_scan(0.2), "and the scan right after it"


def test_hints_that_follow_one_another_do_not_put_the_scan_off() -> None:
    survey = Survey()
    survey.found([group("a")], now=0.0, seconds=0.0)
    survey.found([], now=0.1, seconds=0.0)
    survey.woken(0.2)
    assert not survey.wants_scan(0.2)
    survey.claimed([want("a")], [], total=2)
    survey.woken(0.3)
    assert survey.wants_scan(0.3), "there may be a new group"


def test_a_hint_after_a_long_sleep_tries_the_remembered_groups_too() -> None:
    survey = Survey()
    survey.found([group("a")], now=0.0, seconds=0.0)
    survey.found([], now=0.1, seconds=0.0)
    survey.woken(0.1 + 10 * FULL_SCAN)
    assert not survey.wants_scan(0.1 + 10 * FULL_SCAN)


def test_a_hint_without_remembered_groups_scans_at_once() -> None:
    survey = Survey()
    survey.found([], now=0.0, seconds=0.0)
    survey.woken(0.1)
    assert survey.wants_scan(0.1)


def test_a_full_scan_comes_round_although_claims_are_full() -> None:
    survey = Survey()
    survey.found([group()], now=0.0, seconds=0.01)
    survey.claimed([want()], [claim(1), claim(2)], total=2)
    assert not survey.wants_scan(FULL_SCAN - 0.01)
    assert survey.wants_scan(FULL_SCAN)


def test_what_goes_back_for_a_retry_is_due_again_without_a_scan() -> None:
    survey = Survey()
    survey.found([group()], now=0.0, seconds=0.04)
    survey.claimed([want()], [claim(1)], total=2)
    survey.found([], now=0.1, seconds=0.04)
    survey.requeued(claim(1), due_at=0.3)
    assert survey.due(0.2) == []
    assert [g.task_type for g in survey.due(0.3)] == ["a"]
    assert not survey.wants_scan(0.3)


def test_what_goes_back_into_a_group_that_is_not_known_wants_a_scan() -> None:
    survey = Survey()
    survey.found([], now=0.0, seconds=0.0)
    survey.requeued(claim(1), due_at=0.3)
    assert survey.incomplete


@pytest.mark.parametrize(
    ("seconds", "doubted", "again"),
    [
        (0.04, True, THRIFT * 0.04),
        (0.04, False, FULL_THRIFT * 0.04),
        (10.0, True, LONGEST_WAIT),
        (10.0, False, LONGEST_WAIT),
    ],
)
def test_a_slow_scan_takes_a_small_share_of_the_time_and_comes_round_all_the_same(
    seconds: float, doubted: bool, again: float
) -> None:
    survey = Survey()
    for _ in range(BURST + 1):
        survey.found([], now=0.0, seconds=seconds)
    if doubted:
        survey.doubt()
    assert not survey.wants_scan(again - 0.01)
    assert survey.wants_scan(BURST * again if doubted else again)


def test_slow_scans_are_soon_forgotten() -> None:
    survey = Survey()
    for _ in range(BURST + 1):
        survey.found([], now=0.0, seconds=10.0)
    now = 2 * LONGEST_WAIT
    survey.found([], now=now, seconds=0.0)
    survey.doubt()
    assert survey.wants_scan(now)


def test_what_is_remembered_is_bounded() -> None:
    survey = Survey()
    for number in range(300):
        survey.found([group(f"type {number}")], now=float(number), seconds=0.0)
    survey.woken(300.0)
    assert len(survey.due(300.0)) <= 65


def test_a_group_that_was_found_until_now_is_remembered_however_long_it_is_known() -> None:
    survey = Survey()
    for number in range(REMEMBERED):
        survey.found([group("busy"), group(f"type {number}")], now=float(number), seconds=0.0)
    survey.found([], now=300.0, seconds=0.0)
    survey.woken(300.0)
    due = [g.task_type for g in survey.due(300.0)]
    assert len(due) == REMEMBERED
    assert "busy" in due
    assert "type 0" not in due


def test_a_hint_does_not_put_off_work_that_is_known() -> None:
    survey = Survey()
    survey.found([group("empty"), group("full")], now=0.0, seconds=0.0)
    survey.claimed([want("empty", 2), want("full", 1)], [claim(1, "full")], total=3)
    survey.found([group("full")], now=0.0, seconds=0.0)
    survey.woken(0.1)
    assert [g.task_type for g in survey.due(0.1)] == ["full"]
    assert survey.incomplete, "the next scan tells what the hint meant"


def test_a_scan_that_takes_too_long_is_put_off_longer_each_time_until_one_comes_to_its_end() -> None:
    survey = Survey()
    now, waits = 0.0, []
    for _ in range(6):
        survey.late(now)
        waits.append(survey.scan_in(now))
        survey.woken(now)
        assert survey.scan_in(now) == waits[-1], "a hint does not make it any shorter"
        now += waits[-1]
        assert survey.wants_scan(now)
    assert waits == [LONGEST_WAIT, 2 * LONGEST_WAIT, 4 * LONGEST_WAIT, 8 * LONGEST_WAIT, LONGEST_BLIND, LONGEST_BLIND]
    survey.found([], now, seconds=0.0)
    assert not survey.blind
    survey.late(now)
    assert survey.scan_in(now) == LONGEST_WAIT


def test_while_scans_take_too_long_the_remembered_groups_are_tried_but_those_that_are_left_alone() -> None:
    survey = Survey()
    survey.found([group("a"), group("b")], now=0.0, seconds=0.0)
    survey.claimed([want("a"), want("b")], [], 4)
    survey.refused([want("b")], 0.0)
    survey.late(1.0)
    assert [g.task_type for g in survey.due(1.0)] == ["a"]


def test_a_hint_after_a_claim_in_vain_does_not_bring_back_a_scan_that_takes_too_long() -> None:
    survey = Survey()
    survey.found([group("a")], now=0.0, seconds=0.0)
    survey.late(0.0)
    survey.claimed([want("a")], [], 2)
    survey.woken(0.0)
    assert survey.scan_in(0.0) == LONGEST_WAIT
