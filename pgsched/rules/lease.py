"""Until when a supervisor may believe in its lease.

The database alone judges leases, by its own clock. The supervisor believes less: from the moment at which it
*began* its last successful renewal, so that a slow reply cannot stretch the lease, until a margin before the
end, so that its workers are stopped before the database gives their tasks away. Pure; ``now`` is monotonic.
"""

from typing import Final

LEASE_LOST: Final = "lease lost"
"""Why a task is stopped whose claim went with the lease: it runs again, unlike one that somebody has cancelled."""


def margin(lease: float) -> float:
    """Seconds before a lease's end at which trust in it ends: a tenth, but a second (or a quarter) at least."""
    return max(lease / 10, min(1.0, lease / 4))


class Trust:
    """What one supervisor believes of one registration's lease.

    :param lease: seconds; ``config`` says which are sensible.
    :param started: when the statement that registered the supervisor was begun; None when there is none yet.
    """

    def __init__(self, lease: float, started: float | None = None) -> None:
        self._span = lease - margin(lease)
        self._interval = lease / 3
        self._started = float("-inf") if started is None else started

    def renewed(self, started: float) -> None:
        """Note a renewal that the database confirmed.

        :param started: when its statement was begun, not when the answer came.
        """
        self._started = max(self._started, started)

    @property
    def expires_at(self) -> float:
        """When trust ends; minus infinity when the lease was never granted."""
        return self._started + self._span

    @property
    def renew_at(self) -> float:
        """When the next renewal should begin: a third of the lease after the last one began."""
        return self._started + self._interval

    def is_late(self, now: float) -> bool:
        """Whether a renewal that is confirmed only now is late: so long after it was due that the next one is, too."""
        return now >= self._started + 2 * self._interval

    def trusted(self, now: float) -> bool:
        """Whether the claims are still ours beyond doubt."""
        return now < self.expires_at

    def renew_due(self, now: float) -> float:
        """Seconds until the next renewal should begin; zero or less when it is time."""
        return self.renew_at - now
