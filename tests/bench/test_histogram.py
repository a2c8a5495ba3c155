"""Percentiles that are read off the buckets of a histogram."""

import math

import pytest

from benchmarks.histogram import bucket_percentile

CUMULATIVE = {0.001: 10.0, 0.002: 30.0, 0.004: 40.0, math.inf: 40.0}


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, 0.0),
        (0.25, 0.001),
        (0.5, 0.0015),
        (0.75, 0.002),
        (0.875, 0.003),
        (1.0, 0.004),
    ],
)
def test_a_percentile_lies_within_its_bucket_in_proportion(share: float, expected: float) -> None:
    assert bucket_percentile(CUMULATIVE, share) == pytest.approx(expected)


def test_buckets_below_the_first_value_are_passed_over() -> None:
    assert bucket_percentile({0.001: 0.0, 0.002: 4.0, math.inf: 4.0}, 0.5) == pytest.approx(0.0015)
    assert bucket_percentile({0.001: 0.0, 0.002: 4.0, math.inf: 4.0}, 0.0) == pytest.approx(0.001)


def test_beyond_the_last_bound_nothing_better_is_known() -> None:
    assert bucket_percentile({0.001: 1.0, math.inf: 10.0}, 0.5) == 0.001


@pytest.mark.parametrize("cumulative", [{}, {0.001: 0.0, math.inf: 0.0}])
def test_no_values_have_no_percentile(cumulative: dict[float, float]) -> None:
    assert bucket_percentile(cumulative, 0.5) is None
