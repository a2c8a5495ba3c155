"""What the supervisor and its pool tell, turned into metrics and log lines: one event, one line, one count.

The only place that knows both. A line a task is written for what went wrong, and for the rest only at DEBUG: at forty
thousand tasks a second a line each would be all that the parent does; a summary a minute says how it goes.
Runs in the parent's loop, returns at once and never raises.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgsched.events import emit
from pgsched.model import Claim, Outcome, OutcomeKind, Verdict, VerdictKind
from pgsched.ops.notify import Notifier
from pgsched.ops.statusline import StatusLine

if TYPE_CHECKING:
    from pgsched.ops.metrics import Metrics

SUMMARY_INTERVAL = 60.0
"""Seconds between two summaries."""
STATUS_INTERVAL = 5.0
"""Seconds between two lines for the service manager."""

_EVENTS = {
    OutcomeKind.RETURNED: ("task_completed", logging.DEBUG),
    OutcomeKind.RAISED: ("task_failed", logging.WARNING),
    OutcomeKind.CRASHED: ("task_crashed", logging.WARNING),
    OutcomeKind.TIMED_OUT: ("task_timed_out", logging.WARNING),
    OutcomeKind.OVER_MEMORY: ("task_over_memory", logging.WARNING),
    OutcomeKind.CANCELLED: ("task_cancelled", logging.INFO),
    OutcomeKind.INTERRUPTED: ("task_interrupted", logging.INFO),
    OutcomeKind.LOST: ("task_lost", logging.WARNING),
}
_SUMMED = {
    VerdictKind.COMPLETED: "completed",
    VerdictKind.FAILED: "failed",
    VerdictKind.RETRY: "retried",
    VerdictKind.RELEASED: "released",
}
_RELOADS = ("reloading", "reloaded", "reload_failed")
_SHOWN = ("active", "backlog")
"""Gauges that a summary shows."""
_POOL_LEVELS = {
    "worker_ready": logging.DEBUG,
    "worker_ended": logging.INFO,
    "restart_delayed": logging.WARNING,
    "forkserver_died": logging.WARNING,
    "forkserver_threads": logging.WARNING,
    "output_dropped": logging.WARNING,
    "pool_failed": logging.ERROR,
}
_EXPECTED = frozenset({"stopped", "resized", "reloaded", "max_tasks", "max_memory"})
"""Reasons for which a worker ends that are nobody's misfortune."""
_NOT_REPLACED = frozenset({"stopped", "resized"})


class Telemetry:
    """Hears of everything that happens in one supervisor.

    :param metrics: None to count nothing.
    :param notifier: hears of what state the supervisor is in.
    """

    def __init__(self, metrics: "Metrics | None", notifier: Notifier | None = None) -> None:
        self._metrics = metrics
        self._notifier = notifier or Notifier(None)
        self._debug = logging.getLogger("pgsched").isEnabledFor(logging.DEBUG)
        self._sums: Counter[str] = Counter()
        self._summed_since = time.monotonic()
        self._gauges: dict[str, float] = {}
        self._ready = False
        self.line = StatusLine()

    def claimed(self, claims: Sequence[Claim], *, skipped: int, failed: int, seconds: float) -> None:
        """One claim statement answered: rows taken, advisory locks refused, attempts that failed."""
        self._sums["claimed"] += len(claims)
        if self._metrics is not None:
            self._metrics.claimed(claims, skipped=skipped, failed=failed, seconds=seconds)

    def settled(self, verdicts: Sequence[Verdict], *, fenced: int, seconds: float) -> None:
        """One settle answered.

        :param verdicts: those that were accepted.
        :param fenced: how many others changed no row.
        """
        for kind, count in Counter([verdict.kind for verdict in verdicts]).items():
            self._sums[_SUMMED[kind]] += count
            if kind is VerdictKind.COMPLETED:
                self.line.completed(count)
        if fenced:
            self._sums["fenced"] += fenced
            emit("fenced", logging.WARNING, verdicts=fenced)
        if self._metrics is not None:
            self._metrics.settled(verdicts, fenced=fenced, seconds=seconds)

    def outcome(self, claim: Claim, outcome: Outcome, verdict: Verdict | None) -> None:
        """An attempt ended; None means that the row is not ours any more and nothing is written."""
        if outcome.kind is OutcomeKind.RETURNED and verdict is not None and not self._debug:
            return
        if self._metrics is not None:
            self._metrics.outcome(claim, outcome, verdict)
        event, level = _EVENTS[outcome.kind]
        if outcome.kind is OutcomeKind.INTERRUPTED and outcome.pid is None:
            # It never began: a drain gives back a whole backlog of these.
            level = logging.DEBUG
        failure = outcome.failure
        emit(
            event,
            level,
            task_id=claim.task_id,
            task_type=claim.task_type,
            attempt=claim.attempt,
            slot=outcome.slot,
            pid=outcome.pid,
            seconds=outcome.seconds,
            verdict="discarded" if verdict is None else verdict.kind.value,
            retry_in=verdict.delay if verdict is not None and verdict.kind is VerdictKind.RETRY else None,
            error=failure.error if failure is not None else None,
        )

    def reaped(self, claims: Sequence[Claim]) -> None:
        """Claims of dead supervisors were taken over (also called with none: the reaper is alive)."""
        if claims:
            self._sums["reaped"] += len(claims)
            emit("reaped", logging.WARNING, claims=len(claims))
        if self._metrics is not None:
            self._metrics.reaped(claims)

    def sampled(self, name: str, value: float, **labels: str) -> None:
        """A gauge's new value."""
        if name in _SHOWN:
            self._gauges[name] = value
        self.line.sampled(name, value, labels)
        if self._metrics is not None:
            self._metrics.sampled(name, value, **labels)

    def event(self, name: str, level: int, **fields: Any) -> None:
        """Anything else; ``level`` is one of :mod:`logging`'s."""
        emit(name, level, **fields)
        if name == "state":
            self._entered(fields["state"])
        elif name in _RELOADS:
            self._reload(name, fields)
        elif self._metrics is None:
            return
        elif name == "pool_started":
            self._metrics.know(fields["task_types"])
        elif name == "renewal_late":
            self._metrics.renewal_late()
        elif name == "lease_lost":
            self._metrics.lease_lost()

    def _reload(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "reloading":
            self._notifier.reloading()
            return
        if self._ready:
            self._notifier.ready(self.line.text())
        if self._metrics is not None:
            self._metrics.reloaded("succeeded" if name == "reloaded" else "failed")
            self._metrics.know(fields.get("task_types", ()))

    def ready(self) -> None:
        """The supervisor has a lease: it works from here on."""
        self._ready = True
        self._notifier.ready(self.line.text())

    def pool_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """What the pool tells: see :class:`pgsched.pool.pool.Pool`."""
        level = _POOL_LEVELS.get(name, logging.INFO)
        if name == "worker_ended":
            reason = str(fields["reason"])
            if reason not in _EXPECTED:
                level = logging.WARNING
            self._worker_ended(fields["slot"], reason)
        elif name == "app_changed" and self._metrics is not None:
            self._metrics.know(fields["task_types"])
        emit(name, level, **fields)

    def _worker_ended(self, slot: int, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.worker_ended(slot)
            if reason not in _NOT_REPLACED:
                self._metrics.restarted(reason)

    def _entered(self, state: str) -> None:
        self.line.state = state
        if state == "stopped":
            # Nothing runs or waits any more, whatever was sampled last.
            self._gauges = dict.fromkeys(self._gauges, 0.0)
        if state in ("draining", "stopping"):
            self._notifier.stopping(self.line.text())
        else:
            self._notifier.status(self.line.text())

    def summarise(self) -> None:
        """Write what was done since the last summary, unless nothing was."""
        now = time.monotonic()
        sums, self._sums = self._sums, Counter()
        seconds = now - self._summed_since
        self._summed_since = now
        if any(sums.values()):
            rate = sums["completed"] / seconds if seconds else 0.0
            emit("summary", seconds=seconds, **{**sums, "completed_per_second": rate, **self._gauges})

    async def run(self) -> None:
        """Tell the service manager how it goes, and summarise every minute, until cancelled."""
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            self._notifier.status(self.line.text())
            if time.monotonic() - self._summed_since >= SUMMARY_INTERVAL:
                self.summarise()


class OutageCounter(logging.Handler):
    """Hears of outages where everybody else reads of them: the store knows nobody above it."""

    def __init__(self, metrics: "Metrics") -> None:
        super().__init__(logging.WARNING)
        self._metrics = metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Count the event that begins an outage."""
        if record.msg == "database_lost":
            self._metrics.database_lost()
