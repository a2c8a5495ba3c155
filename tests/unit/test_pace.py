"""How far ahead the pace of late allows one to claim."""

import pytest

from pgsched.rules.demand import LIMITS
from pgsched.rules.pace import AHEAD, LEAST, SPAN, Pace

MOST = LIMITS.waiting


def paced(
    rate: float, *, seconds: float = 2.0, step: float = 0.01, busy: bool = True, pace: Pace | None = None
) -> Pace:
    pace = pace or Pace()
    start = 100.0
    pace.ended(0, start, busy=busy)
    for turn in range(1, round(seconds / step) + 1):
        pace.ended(round(rate * step), start + turn * step, busy=busy)
    return pace


def test_nothing_is_known_at_first_and_a_burst_is_taken_up_all_the_same() -> None:
    assert Pace().backlog(MOST) == LEAST
    assert Pace().backlog(100) == 100


@pytest.mark.parametrize(("rate", "waiting"), [(100, LEAST), (4000, 1000), (8000, 2000), (30_000, MOST)])
def test_the_backlog_holds_a_quarter_of_a_second_within_bounds(rate: float, waiting: int) -> None:
    assert paced(rate).backlog(MOST) == pytest.approx(waiting, rel=0.01)


def test_one_busy_round_trip_is_enough_to_go_on() -> None:
    pace = Pace()
    pace.ended(0, 1.0, busy=False)
    pace.ended(500, 1.05, busy=True)
    assert pace.backlog(MOST) == pytest.approx(500 / 0.05 * AHEAD, abs=1)


def test_a_time_without_work_changes_nothing() -> None:
    pace = paced(8000)
    before = pace.backlog(MOST)
    for now in (200.0, 300.0):
        pace.ended(3, now, busy=False)
    assert pace.backlog(MOST) == before


def test_a_change_counts_soon() -> None:
    pace = paced(10_000)
    slow = paced(3000, seconds=4 * SPAN, pace=pace)
    assert slow.backlog(MOST) == pytest.approx(3000 * AHEAD, rel=0.1)
