"""Percentiles of a Prometheus histogram: what a supervisor tells of its statements without keeping each duration."""

import math
from collections.abc import Mapping


def bucket_percentile(cumulative: Mapping[float, float], share: float) -> float | None:
    """Read a percentile off buckets, in their unit; None when they are empty.

    Within a bucket the values are taken to lie evenly, as Prometheus' own histogram_quantile does: the answer is exact
    to the bucket's width. Beyond the last finite bound nothing is known but that bound.

    :param cumulative: upper bound (the last one infinite) and how many values lie at or below it.
    :param share: 0.5 for the median.
    """
    bounds = sorted(cumulative)
    if not bounds or cumulative[bounds[-1]] <= 0:
        return None
    wanted = share * cumulative[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        reached = cumulative[bound]
        if reached >= wanted and reached > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (wanted - below) / (reached - below)
        lower, below = bound, reached
    return lower
