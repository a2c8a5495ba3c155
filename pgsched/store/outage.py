"""One voice for a database that is away: the first failure in full, then seldom, and one line at its return."""

import logging
import time

from pgsched.events import emit
from pgsched.rules.backoff import Backoff

_FIRST_SUMMARY = 10.0
_LONGEST_SILENCE = 300.0


class Outage:
    """Shared by all connections of a store, which fail together."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._failures = 0
        self._silence = Backoff(base=_FIRST_SUMMARY, cap=_LONGEST_SILENCE)
        self._next_summary = 0.0
        self.count = 0
        """Outages so far."""

    def failed(self, error: BaseException) -> None:
        """Count a failure and log it if it is time to."""
        now = time.monotonic()
        self._failures += 1
        if self._since is None:
            self._since = now
            self.count += 1
            emit("database_lost", logging.WARNING, error=str(error))
        elif now >= self._next_summary:
            emit(
                "database_still_lost",
                logging.WARNING,
                seconds=now - self._since,
                failures=self._failures,
                error=str(error),
            )
        else:
            return
        self._next_summary = now + self._silence.failed(now, lambda: 1.0)

    def succeeded(self) -> None:
        """A call was answered."""
        if self._since is None:
            return
        emit("database_back", logging.WARNING, seconds=time.monotonic() - self._since)
        self._since = None
        self._failures = 0
        self._silence.succeeded()
