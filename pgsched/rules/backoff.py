"""How long to leave something alone that keeps failing: the database, above all.

Half of each delay is fixed and half is drawn, so that the attempts of one supervisor have a bounded rate and
those of many do not fall together when a server returns. Pure: the dice are an argument.
"""

from collections.abc import Callable


class Backoff:
    """A row of failures with growing delays.

    :param base: seconds; the ceiling of the first delay. It doubles with each failure.
    :param cap: seconds; the highest ceiling.
    """

    def __init__(self, base: float = 0.5, cap: float = 30.0) -> None:
        self._base = base
        self._cap = cap
        self.failures = 0
        """How many came without a success between them."""

    def failed(self, random: Callable[[], float]) -> float:
        """Count a failure and return the seconds to wait: from half the ceiling up to the ceiling."""
        ceiling = min(self._cap, self._base * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return ceiling * (0.5 + 0.5 * random())

    def succeeded(self) -> None:
        """Begin anew."""
        self.failures = 0
