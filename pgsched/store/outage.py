"""One voice for a database that is away: the first failure in full, then seldom, and one line at its return.

One that is there and refuses has a line of its own.
"""

import logging
import math
import time

from pgsched.events import emit
from pgsched.rules.backoff import Backoff

_FIRST_SUMMARY = 10.0
_LONGEST_SILENCE = 300.0
CALM = 10.0
"""Seconds without a failure after which the next one begins a new outage; longer than anybody waits to try again."""


_MOST_REFUSALS = 32
"""Texts that are remembered: what is refused may have a name of its own each time."""


class _Silence:
    """What comes again and again is told the first time, and then after growing intervals."""

    def __init__(self) -> None:
        self._backoff = Backoff(base=_FIRST_SUMMARY, cap=_LONGEST_SILENCE)
        self._until = -math.inf

    def is_over(self, now: float) -> bool:
        """Whether to tell it now; then another one begins."""
        if now < self._until:
            return False
        self._until = now + self._backoff.failed(lambda: 1.0)
        return True


class Outage:
    """Shared by all connections of a store, which mostly fail together.

    Mostly: a server that has turned read-only answers some calls and refuses others, and one that is restarted again
    and again is back each time. That is one outage, of which the first loss and return are told at once.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._failed_at = -math.inf
        self._back_at = -math.inf
        self._told = False
        self._failures = 0
        self._silence = _Silence()
        self._refusals: dict[str, _Silence] = {}
        self.count = 0
        """Outages so far."""

    def failed(self, error: BaseException) -> None:
        """Count a failure and log it if it is time to."""
        self._failed_at = now = time.monotonic()
        if self._since is None:
            self._since = now
            if now - self._back_at > CALM:
                self._begin()
        self._failures += 1
        if not self._silence.is_over(now):
            return
        if self._told:
            emit(
                "database_still_lost",
                logging.WARNING,
                seconds=now - self._since,
                failures=self._failures,
                error=str(error),
            )
        else:
            failures = self._failures if self._failures > 1 else None
            emit("database_lost", logging.WARNING, failures=failures, error=str(error))
        self._told = True

    def _begin(self) -> None:
        self.count += 1
        self._failures = 0
        self._silence = _Silence()

    def refused(self, began: float, error: BaseException) -> None:
        """A call was answered, with a no that means more than its own values: a right or a table is missing.

        :param began: when it was begun, monotonic.
        """
        self.succeeded(began)
        if len(self._refusals) > _MOST_REFUSALS:
            self._refusals.clear()
        if self._refusals.setdefault(str(error), _Silence()).is_over(time.monotonic()):
            emit("statement_refused", logging.ERROR, error=str(error))

    def succeeded(self, began: float = math.inf) -> None:
        """A call was answered.

        :param began: when it was begun, monotonic. One from before the last failure tells nothing of the time since.
        """
        if self._since is None or began <= self._failed_at:
            return
        self._back_at = time.monotonic()
        if self._told:
            emit("database_back", logging.WARNING, seconds=self._back_at - self._since)
        self._since = None
        self._told = False
