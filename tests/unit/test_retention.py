"""How wide the ranges of ended tasks are."""

import pytest

from pgsched.rules.retention import WIDTHS, range_width

HOUR, DAY = 3600.0, 86400.0


@pytest.mark.parametrize(
    ("kept", "width"),
    [
        (0.0, None),
        (5 * HOUR - 1, None),
        (5 * HOUR, HOUR),
        (DAY, HOUR),
        (7 * DAY, DAY),
        (30 * DAY, DAY),
        (90 * DAY, 7 * DAY),
        (365 * DAY, 28 * DAY),
    ],
)
def test_a_range_is_at_most_a_fifth_of_what_is_kept(kept: float, width: float | None) -> None:
    assert range_width(kept) == width


def test_there_are_never_many_ranges() -> None:
    for kept in range(5 * 3600, 365 * 86400, 3600):
        width = range_width(float(kept))
        assert width in WIDTHS
        assert kept / width <= 35
