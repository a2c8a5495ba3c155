"""Rates from the moments at which tasks ended."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ended import Settled, rate, slice_rates

STEADY = [Settled(100.0 + second, 10) for second in range(11)]


def test_a_steady_drain_has_the_same_rate_in_every_slice() -> None:
    assert rate(STEADY) == pytest.approx(10.0)
    assert slice_rates(STEADY, 4) == pytest.approx([10.0] * 4)


def test_what_ended_at_the_first_moment_is_not_counted() -> None:
    """When work on it began is not known."""
    assert rate([Settled(0.0, 1_000_000), Settled(2.0, 10)]) == pytest.approx(5.0)


def test_a_slow_end_is_seen_in_the_last_slice_only() -> None:
    moments = [*STEADY, Settled(130.0, 100)]
    assert slice_rates(moments, 2) == pytest.approx([10.0, 5.0])


def test_one_moment_has_no_rate() -> None:
    assert rate([]) is None
    assert rate([Settled(1.0, 500)]) is None
    assert slice_rates([Settled(1.0, 500)], 10) == []


@given(
    steps=st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 1000)), min_size=1, max_size=30),
    slices=st.integers(1, 12),
)
def test_the_slices_take_as_long_as_the_whole(steps: list[tuple[float, int]], slices: int) -> None:
    moments = [Settled(0.0, 1)]
    for seconds, tasks in steps:
        moments.append(Settled(moments[-1].at + seconds, tasks))
    counted = sum(moment.tasks for moment in moments[1:])
    rates = slice_rates(moments, slices)
    assert len(rates) == slices
    assert sum(counted / slices / each for each in rates) == pytest.approx(moments[-1].at)
    speeds = [after.tasks / (after.at - before.at) for before, after in pairwise(moments)]
    assert min(speeds) * 0.999 <= min(rates)
    assert max(rates) <= max(speeds) * 1.001
