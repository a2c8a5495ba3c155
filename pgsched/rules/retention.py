"""How wide the ranges are that ended tasks stand in. Pure."""

from typing import Final

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
WIDTHS: Final = (_HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY)
"""Seconds."""
AHEAD: Final = 4
"""Ranges that are made before they are needed, so that one that cannot be made now can be made later."""
_SHARE: Final = 5
"""A range goes as a whole, so some tasks are kept longer than they need be: by so small a part of the time."""


def range_width(kept: float) -> float | None:
    """The width of the ranges when tasks are kept for so many seconds; None: too short for ranges to be worth it."""
    return max((width for width in WIDTHS if width * _SHARE <= kept), default=None)
