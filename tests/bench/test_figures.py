"""Percentiles, medians over runs, and how figures are shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import median, percentile
from benchmarks.results import shown, summarise, table
from benchmarks.scenario import Result
from benchmarks.supervisors import buckets_of


def test_a_percentile_lies_between_its_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, p) for p in (0, 50, 100)] == [10.0, 25.0, 40.0]
    assert percentile(values, 99) == pytest.approx(39.7)
    assert percentile([7.0], 99) == 7.0
    assert median([3.0, 1.0, 2.0]) == 2.0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0, 100))
def test_so_many_values_lie_at_or_below_a_percentile(values: list[float], p: float) -> None:
    place = (len(values) - 1) * p / 100
    found = percentile(values, p)
    ordered = sorted(values)
    # Between two values that are far apart, the straight line is off by their last digit.
    slack = 1e-6
    assert ordered[math.floor(place)] - slack <= found <= ordered[math.ceil(place)] + slack


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="from 0 to 100"):
        percentile([1.0], 101)


def test_a_run_that_lacks_a_figure_does_not_shift_the_others() -> None:
    runs = [
        [Result("a", 1.0, "ms"), Result("b", None, "s")],
        [Result("b", 5.0, "s"), Result("a", 3.0, "ms"), Result("c", None, "")],
    ]
    a, b, c = summarise(runs)
    assert (a.name, a.value, a.unit, a.min, a.max, a.runs) == ("a", 2.0, "ms", 1.0, 3.0, [1.0, 3.0])
    assert (b.value, b.min, b.max, b.runs) == (5.0, 5.0, 5.0, [None, 5.0])
    assert (c.name, c.value, c.min, c.max, c.runs) == ("c", None, None, None, [None, None])


def test_what_cannot_be_had_is_never_shown_as_a_number() -> None:
    [line] = table(summarise([[Result("postgres_cores", None, "")]]))
    assert line.split(maxsplit=1) == ["postgres_cores", "not available"]
    assert shown(0.0) == "0"
    assert shown(0.0123) == "0.012"
    assert shown(123.456) == "123.5"
    assert shown(40_123.4) == "40,123"


def test_buckets_are_summed_over_other_labels() -> None:
    metrics = {
        'x_bucket{task_type="a",le="0.1"}': 1.0,
        'x_bucket{task_type="b",le="0.1"}': 2.0,
        'x_bucket{task_type="b",le="+Inf"}': 4.0,
        'xx_bucket{le="0.1"}': 99.0,
        'x_sum{task_type="a"}': 99.0,
    }
    assert buckets_of(metrics, "x") == {0.1: 3.0, math.inf: 4.0}
