"""One line that says how a supervisor is: what ``systemctl status`` shows.

Made of what telemetry hears anyway. Only text; whoever wants the line asks for it. Runs in the parent's loop.
"""

import logging
import math
import time
from collections.abc import Callable


class StatusLine:
    """State, tasks that run here, tasks that are due or wait in the table, and the rate.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = "starting"
        self.outage = False
        """Whether the database is away."""
        self.stuck: list[str] = []
        """Parts of the supervisor that have stopped moving."""
        self._clock = clock
        self._running = 0
        self._queued: dict[str, float] = {"": math.nan}
        """By queue; NaN while nobody knows."""
        self._completed = 0
        self._since = clock()

    def sampled(self, name: str, value: float, labels: dict[str, str]) -> None:
        """A gauge's new value; most are of no interest here."""
        if name == "active":
            self._running = int(value)
        elif name == "queue_depth" and labels["state"] == "queued":
            self._queued.pop("", None)
            self._queued[labels["queue"]] = value

    def completed(self, tasks: int) -> None:
        """So many tasks more have been written as completed."""
        self._completed += tasks

    def text(self) -> str:
        """The line; its rate is that of the time since the last call."""
        now = self._clock()
        rate = self._completed / (now - self._since) if now > self._since else 0.0
        self._completed, self._since = 0, now
        depth = sum(self._queued.values())
        queued = "-" if math.isnan(depth) else f"{depth:,.0f}"
        line = f"{self.state}: {self._running} running, {queued} queued, {rate:,.1f} completed/s"
        if self.outage:
            line += "; the database is away"
        return f"{line}; stuck: {', '.join(self.stuck)}" if self.stuck else line


class OutageWatch(logging.Handler):
    """Hears of outages where everybody else reads of them: the store knows nobody above it."""

    def __init__(self, line: StatusLine) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Note where an outage begins and ends."""
        if record.msg in ("database_lost", "database_still_lost"):
            self._line.outage = True
        elif record.msg == "database_back":
            self._line.outage = False
