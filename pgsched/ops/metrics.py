"""The supervisor's metrics: one call for each thing that happens, a few writes for a batch of hundreds.

prometheus_client in multiprocess mode, with the identity "supervisor". Counts of what was written to the table are
exact and made here, from accepted settles: ``pgsched_settled_total`` equals the rows, ``pgsched_failures_total`` the
rows of ``pgsched_failures``, whoever was killed in between. The histograms of single attempts are the workers'
(``recorder``), except for attempts that took their worker along.

Import it only after ``make_directory``. Runs in the parent's loop; nothing here blocks.
"""

import math
import time
from collections import Counter as Count
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, values

from pgsched.model import Claim, Outcome, OutcomeKind, Verdict, VerdictKind
from pgsched.ops.children import Children, Room
from pgsched.ops.directory import forget_gauges, reserve, slot_identity
from pgsched.ops.recorder import Recorder, recorder_path

IDENTITY = "supervisor"
UNKNOWN = "(unknown)"
"""Label for task types that no module of ours registers: rows may hold any number of them."""
REPLACED = ("crashed", "idle", "boot", "boot_timeout", "protocol", "timed_out", "over_memory")
"""Why workers are replaced that somebody should know of."""
FAILED = ("raised", "crashed", "timed_out", "over_memory", "lost")

QUICK = (0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bucket bounds in seconds for statements: narrow where a batch's round trip lies, so that its median can be read."""

_STATUS = {
    OutcomeKind.CRASHED: "failed",
    OutcomeKind.TIMED_OUT: "failed",
    OutcomeKind.OVER_MEMORY: "failed",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.INTERRUPTED: "interrupted",
}
"""The status of an attempt that can end with its worker."""
_FAILING = (VerdictKind.RETRY, VerdictKind.FAILED)


class Metrics:
    """All metrics of one supervisor.

    :param directory: of this supervisor alone, empty.
    :raises OSError: there is no room for its files.
    """

    def __init__(self, directory: Path) -> None:
        self._counters = Room(directory / f"counter_{IDENTITY}.db")
        self._levels = Room(directory / f"gauge_mostrecent_{IDENTITY}.db")
        # Only the two that are made here: it never grows.
        reserve(directory / f"histogram_{IDENTITY}.db")
        multiprocess: Any = values
        multiprocess.ValueClass = multiprocess.MultiProcessValue(lambda: IDENTITY)
        self._directory = directory
        self._recorder = Recorder(recorder_path(directory, IDENTITY))
        self._known: set[str] = set()
        self._reached: dict[tuple[str, ...], float] = {}
        self._define_counters()
        self._define_gauges()
        self._claim_seconds = Histogram(
            "pgsched_claim_duration_seconds",
            "Round trip of an exchange that claimed.",
            buckets=QUICK,
            registry=None,
        )
        self._settle_seconds = Histogram(
            "pgsched_settle_duration_seconds",
            "Round trip of an exchange that settled.",
            buckets=QUICK,
            registry=None,
        )

    def _define_counters(self) -> None:
        attempts = self._counter(
            "scheduler_lock_attempts_total", "Total number of advisory lock attempts and their results.", "result"
        )
        self._acquired = attempts["acquired",]
        self._skipped = attempts["skipped",]
        self._failed = attempts["failed",]
        self._claimed = self._counter("pgsched_claimed_total", "Tasks claimed.", "task_type")
        self._settled = self._counter(
            "pgsched_settled_total", "Verdicts written to the table: equal to its rows.", "task_type", "verdict"
        )
        self._failures = self._counter(
            "pgsched_failures_total", "Failed attempts: equal to the rows of pgsched_failures.", "task_type", "outcome"
        )
        self._discarded = self._counter(
            "pgsched_discarded_total",
            "Attempts that ended when the claim was no longer ours: cancelled, or the lease was lost.",
            "task_type",
            "outcome",
        )
        self._restarts = self._counter("pgsched_worker_restarts_total", "Workers that were replaced.", "reason")
        for reason in REPLACED:
            # A counter that begins with 1 has not risen, for whoever watches it.
            self._restarts[reason,]
        self._reloads = self._counter("pgsched_reloads_total", "Times that the app was to be imported anew.", "result")
        for result in ("succeeded", "failed"):
            self._reloads[result,]
        self._fenced = self._counter("pgsched_fenced_total", "Verdicts that were too late and changed no row.")[()]
        self._reaped = self._counter("pgsched_reaped_total", "Claims taken over from dead supervisors.")[()]
        self._outages = self._counter("pgsched_database_outages_total", "Times that the database went away.")[()]
        self._late = self._counter("pgsched_late_renewals_total", "Renewals that came when the next one was due.")[()]
        self._leases_lost = self._counter("pgsched_leases_lost_total", "Leases that ran out, with all claims held.")[()]
        self._totals = {
            "slot_busy_seconds": self._counter(
                "pgsched_slot_busy_seconds_total", "Time in which a slot's worker had a task.", "slot"
            ),
            "task_cpu_seconds": self._counter(
                "pgsched_task_cpu_seconds_total", "Processor time of workers, by the task that they ran.", "task_type"
            ),
        }

    def _define_gauges(self) -> None:
        self._gauges = {
            "active": self._gauge("scheduler_active_workers", "Number of concurrent workers currently running tasks."),
            "held": self._gauge("pgsched_held_claims", "Claims that the supervisor holds, running ones included."),
            "backlog": self._gauge("pgsched_backlog", "Claimed tasks that wait in the supervisor for a slot."),
            "slots": self._gauge("pgsched_slots", "Slots by state.", "state"),
            "lease_seconds": self._gauge("pgsched_lease_seconds", "Length of the supervisor's lease."),
            "lease_remaining_seconds": self._gauge(
                "pgsched_lease_remaining_seconds", "How long the supervisor may still trust its lease."
            ),
            "queue_depth": self._gauge(
                "pgsched_queue_depth", "Tasks in the table, all supervisors'.", "queue", "state"
            ),
            "due_tasks": self._gauge(
                "pgsched_due_tasks", "Tasks in the table that could run now, by type.", "task_type"
            ),
            "oldest_due_seconds": self._gauge(
                "pgsched_oldest_due_seconds", "How long the oldest due task of a queue has been due.", "queue"
            ),
            "reaper_last_success_timestamp_seconds": self._gauge(
                "pgsched_reaper_last_success_timestamp_seconds", "When the reaper last finished a turn, Unix time."
            ),
            "oldest_snapshot_seconds": self._gauge(
                "pgsched_oldest_snapshot_seconds", "How long somebody has kept dead rows from being removed."
            ),
            "oldest_snapshot_transactions": self._gauge(
                "pgsched_oldest_snapshot_transactions", "Over how many transactions somebody has done so."
            ),
            "table_rows": self._gauge("pgsched_table_rows", "Live rows, as the server's statistics have it.", "table"),
            "table_dead_rows": self._gauge("pgsched_table_dead_rows", "Dead rows, likewise.", "table"),
            "table_bytes": self._gauge(
                "pgsched_table_bytes", "Size with indexes, as of the last VACUUM or ANALYZE.", "table"
            ),
        }
        for gauge in self._gauges.values():
            if not gauge.labelled:
                # prometheus_client shows 0 from the start on.
                gauge[()].set(math.nan)
        self.sampled("active", 0)

    def close(self) -> None:
        """Close the files; nothing can be counted any more."""
        self._recorder.close()
        close_all_files = getattr(values.ValueClass, "close_all_files", None)
        if close_all_files is not None:
            close_all_files()

    def know(self, task_types: Iterable[str]) -> None:
        """Give these task types series of their own, from zero on; all others share one."""
        for task_type in task_types:
            self._known.add(task_type)
            self._claimed[task_type,]
            for verdict in VerdictKind:
                self._settled[task_type, verdict]
            for outcome in FAILED:
                self._failures[task_type, outcome]

    def claimed(self, claims: Sequence[Claim], *, skipped: int, failed: int, seconds: float) -> None:
        """One claim statement answered: rows taken, advisory locks refused, attempts that failed."""
        self._claim_seconds.observe(seconds)
        if claims:
            self._acquired.inc(len(claims))
        if skipped:
            self._skipped.inc(skipped)
        if failed:
            self._failed.inc(failed)
        for task_type, count in Count([claim.task_type for claim in claims]).items():
            self._claimed[self._type(task_type),].inc(count)

    def settled(self, verdicts: Sequence[Verdict], *, fenced: int, seconds: float) -> None:
        """One settle answered.

        :param verdicts: those that were accepted.
        :param fenced: how many others changed no row.
        """
        if verdicts:
            self._settle_seconds.observe(seconds)
        if fenced:
            self._fenced.inc(fenced)
        kinds = Count([(verdict.claim.task_type, verdict.kind, verdict.outcome) for verdict in verdicts])
        for (task_type, kind, outcome), count in kinds.items():
            known = self._type(task_type)
            self._settled[known, kind].inc(count)
            if kind in _FAILING:
                self._failures[known, outcome].inc(count)

    def outcome(self, claim: Claim, outcome: Outcome, verdict: Verdict | None) -> None:
        """An attempt ended; None means that the row is not ours any more."""
        kind = outcome.kind
        if verdict is None:
            self._discarded[self._type(claim.task_type), kind].inc()
        failure = outcome.failure
        if failure is not None and kind in _STATUS and (failure.signal is not None or failure.exit_code is not None):
            self._recorder.died(self._type(claim.task_type), _STATUS[kind], outcome.seconds)

    def reaped(self, claims: Sequence[Claim]) -> None:
        """The reaper finished a statement, with or without claims to take over."""
        if claims:
            self._reaped.inc(len(claims))
        self.sampled("reaper_last_success_timestamp_seconds", time.time())

    def worker_ended(self, slot: int) -> None:
        """A worker is gone, and no other has its slot yet."""
        forget_gauges(self._directory, slot_identity(slot))

    def restarted(self, reason: str) -> None:
        """A worker is being replaced.

        :param reason: one of a closed set; it becomes a label.
        """
        self._restarts[reason,].inc()

    def reloaded(self, result: str) -> None:
        """The app was to be imported anew: "succeeded", or "failed"."""
        self._reloads[result,].inc()

    def database_lost(self) -> None:
        """The database went away; to be called once an outage."""
        self._outages.inc()

    def renewal_late(self) -> None:
        """A renewal was confirmed so late that the next one was due."""
        self._late.inc()

    def lease_lost(self) -> None:
        """The lease has run out."""
        self._leases_lost.inc()

    def sampled(self, name: str, value: float, **labels: str) -> None:
        """A gauge's new value, NaN if it is unknown now, or what a total has come to; any other name is ignored."""
        if name in self._gauges:
            self._gauges[name][tuple(labels.values())].set(value)
        elif name in self._totals:
            key = name, *labels.values()
            if name == "task_cpu_seconds":
                labels["task_type"] = self._type(labels["task_type"])
            self._totals[name][tuple(labels.values())].inc(max(value - self._reached.get(key, 0.0), 0.0))
            self._reached[key] = max(value, self._reached.get(key, 0.0))

    def _type(self, task_type: str) -> str:
        return task_type if task_type in self._known else UNKNOWN

    def _counter(self, name: str, text: str, *labels: str) -> Children[Counter]:
        return Children(Counter(name, text, labels, registry=None), self._counters)

    def _gauge(self, name: str, text: str, *labels: str) -> Children[Gauge]:
        # Only the supervisor has gauges; this mode shows them without a label for the process.
        return Children(Gauge(name, text, labels, registry=None, multiprocess_mode="mostrecent"), self._levels)
