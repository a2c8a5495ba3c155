"""How many tasks a second end here while there is work: what bounds the backlog of tiny tasks.

How long tasks of a type run says little about it when they are tiny: then the books, and the neighbours on the same
processors, decide. Who holds more than it will start soon lets other supervisors idle at the end of a burst, and takes
more down when it dies. Runs in the supervisor; pure, ``now`` is monotonic.
"""

import math
from typing import Final

AHEAD: Final = 0.25
"""Seconds of work that the backlog may hold."""
LEAST: Final = 500
"""Tasks that it may hold at any pace: enough that a burst after a rest is taken up in a few round trips."""
SPAN: Final = 0.25
"""Seconds after which what was seen counts for a third."""


class Pace:
    """A moving average over the time in which there was more to do than was held."""

    def __init__(self) -> None:
        self._tasks = self._seconds = 0.0
        self._looked_at = math.inf

    def ended(self, tasks: int, now: float, *, busy: bool) -> None:
        """Take in how many tasks have ended since the last call.

        :param busy: whether there was more to do all the time; a time without does not tell how fast work would go.
        """
        elapsed = now - self._looked_at
        self._looked_at = now
        if not busy or elapsed <= 0:
            return
        kept = math.exp(-elapsed / SPAN)
        self._tasks = self._tasks * kept + tasks
        self._seconds = self._seconds * kept + elapsed

    def backlog(self, most: int) -> int:
        """How many tasks may wait.

        :param most: at most.
        """
        ahead = int(self._tasks / self._seconds * AHEAD) if self._seconds else 0
        return min(most, max(LEAST, ahead))
