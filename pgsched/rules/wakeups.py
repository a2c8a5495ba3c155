"""Whether a supervisor should ask to be woken when tasks are queued, or look by itself.

NOTIFY makes commits wait for one another, so a hint costs those who queue tasks, and is worth it only for somebody who
would otherwise sleep. When hints come thick, rows come without them too: the supervisor declines, looks every few
milliseconds, and asks again when it has found nothing for a while. Knows nothing of the database; what makes sure that
no row is missed in between is ``Rest.told`` in ``supervisor/resting.py``. Pure; ``now`` is monotonic.
"""

import math

SPAN = 0.05
CROWD, CROWD_HINTS = 4, 8
"""So many senders with so many hints within :data:`SPAN` are too many: they have waited for one another."""
ALONE_HINTS = 16
"""So many hints are too many, be they all from one: a sender who waits for each task to end sends fewer."""
LULL = 0.05
"""Seconds without a find after which the supervisor asks to be woken; doubled up to :data:`LONGEST_LULL` for each time
that the hints came thick again before :data:`CALM` seconds were over."""
LONGEST_LULL = 0.8
CALM = 1.0
STREAM = 0.02
"""Seconds after a find in which more is expected."""
SATURATED = 0.25
"""Seconds without a starving slot after which wake-ups are declined."""


class Wakeups:
    """What one supervisor has told the database, and what it has seen since."""

    def __init__(self) -> None:
        self.asked: bool | None = False
        """Whether the database was told to wake us; None: it is not known what it knows."""
        self._found_at = self._told_at = -math.inf
        self._starved_at = -math.inf
        self._lull = LULL
        self._span_began = -math.inf
        self._senders: list[int] = []

    def hinted(self, sender: int, now: float) -> None:
        """Take in one hint."""
        if now - self._span_began > SPAN:
            self._span_began = now
            self._senders = []
        self._senders.append(sender)

    def found(self, now: float) -> None:
        """Rows were claimed."""
        self._found_at = now

    def streaming(self, now: float) -> bool:
        """Whether rows come, and no hints with them: the groups that had some are worth another try before any scan."""
        return not self.asked and now - self._found_at < STREAM

    def starving(self, now: float) -> None:
        """A slot has nothing to do."""
        self._starved_at = now

    def wanted(self, now: float, *, starving: bool) -> bool:
        """Whether to be woken from now on.

        :param starving: whether a slot has nothing to do at this moment.
        """
        if self.asked:
            return not self._thick() and now - self._starved_at <= SATURATED
        # From when it was told too, because hints may be thick although there is nothing for us.
        return starving and now - max(self._found_at, self._told_at) >= self._lull

    def told(self, asked: bool, now: float) -> None:
        """The database was told."""
        if not asked and self._thick():
            self._lull = LULL if now - self._told_at > CALM else min(self._lull * 2, LONGEST_LULL)
        self.asked = asked
        self._told_at = now
        self._senders = []

    def lost(self) -> None:
        """What the database was told may not have outlived a failure of its: tell it again in any case."""
        self.asked = None

    def _thick(self) -> bool:
        hints = len(self._senders)
        return hints >= ALONE_HINTS or (hints >= CROWD_HINTS and len(set(self._senders)) >= CROWD)
