"""What many measurements of one thing come to. Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], p: float) -> float:
    """The value below which `p` percent of the values lie, between two of them by straight line (as numpy has it).

    :param p: 0 for the smallest, 50 for the median, 100 for the largest.
    :raises ValueError: there are no values, or `p` is no percentage.
    """
    if not values:
        raise ValueError("no values were measured")
    if not 0 <= p <= 100:
        raise ValueError(f"percentile {p!r}: must be from 0 to 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(values, 50)
