"""Rows that come without a hint because they were inserted before the supervisor had asked to be woken.

An INSERT that is under way when the flag is set has not seen it, and may commit long after the look that follows. Any
such transaction has its number before the first look. So looks go on until all that were numbered then are over, at
growing intervals: a row waits for at most as long again as its transaction took, and on a quiet server nothing is
looked for twice. Knows nothing of the database. Pure; ``now`` is monotonic.
"""

import math
from typing import Final

from pgsched.model import Horizon

SOONEST: Final = 0.02
"""Seconds until the second look: most transactions are over by then."""


class Latecomers:
    """Whether there may still be such rows, and when to look for them."""

    def __init__(self) -> None:
        self.expected = False
        self._asked_at = 0.0
        self._last: int | None = None
        self._look_at = math.inf

    def told(self, asked: bool, now: float) -> None:
        """The database was told to wake us, or not to; in the latter case we look by ourselves anyway."""
        self.expected = asked
        self._asked_at = self._look_at = now
        self._last = None

    def looking(self, horizon: Horizon, now: float) -> None:
        """A look begins; this was how things stood before it."""
        if self._last is None:
            self._last = horizon.next
        self.expected = horizon.oldest < self._last
        self._look_at = now + max(now - self._asked_at, SOONEST)

    def look_in(self, now: float) -> float:
        """Seconds until the next look for them; infinite while there are none."""
        return self._look_at - now if self.expected else math.inf
