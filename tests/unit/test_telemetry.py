"""Each happening in the supervisor becomes one line and one count."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgsched.model import Claim, Failure, Outcome, OutcomeKind, Verdict, VerdictKind
from pgsched.ops import logs
from pgsched.ops.metrics import Metrics
from pgsched.ops.telemetry import Telemetry
from pgsched.supervisor.observer import Observer
from tests.scraped import Scraped

CLAIM = Claim(12, 7, "compress", "default", 0, "{}", 1, 3, None, 0.2, "2026-01-01")


class Log:
    """JSON logs, read back."""

    def __init__(self, level: int) -> None:
        self._reading, self._writing = os.pipe()
        self._output = logs.setup("json", redact=str, level=level, descriptor=self._writing)
        self._records: list[dict[str, Any]] | None = None

    def records(self) -> list[dict[str, Any]]:
        """End the log and return what came."""
        if self._records is None:
            self._output.close()
            os.close(self._writing)
            with os.fdopen(self._reading, "rb") as file:
                self._records = [json.loads(line) for line in file]
        return self._records


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    log = Log(getattr(request, "param", logging.INFO))
    yield log
    log.records()
    logging.getLogger("pgsched").setLevel(logging.NOTSET)


@pytest.fixture
def telemetry(log: Log, directory: Path) -> Iterator[Telemetry]:
    metrics = Metrics(directory)
    metrics.know(["compress"])
    yield Telemetry(metrics)
    metrics.close()


def verdict(kind: VerdictKind, outcome: OutcomeKind = OutcomeKind.RAISED, delay: float = 0.0) -> Verdict:
    return Verdict(CLAIM, kind, 0.5, delay, outcome=outcome)


def test_it_is_what_the_supervisor_tells_everything(telemetry: Telemetry) -> None:
    observer: Observer = telemetry
    assert observer is telemetry


def test_a_failure_is_one_line_with_all_that_identifies_it(telemetry: Telemetry, log: Log) -> None:
    failure = Failure(error="killed by signal 9 (SIGKILL)", signal=9)
    outcome = Outcome(OutcomeKind.CRASHED, 0.25, failure=failure, slot=3, pid=77)
    telemetry.outcome(CLAIM, outcome, verdict(VerdictKind.RETRY, OutcomeKind.CRASHED, 1.5))
    (record,) = log.records()
    del record["time"]
    assert record == {
        "level": "warning",
        "event": "task_crashed",
        "task_id": 12,
        "task_type": "compress",
        "attempt": 2,
        "slot": 3,
        "pid": 77,
        "seconds": 0.25,
        "verdict": "retry",
        "retry_in": 1.5,
        "error": "killed by signal 9 (SIGKILL)",
    }


@pytest.mark.parametrize(("log", "lines"), [(logging.INFO, 0), (logging.DEBUG, 5)], indirect=["log"])
def test_a_success_is_a_line_only_for_who_asks(telemetry: Telemetry, log: Log, lines: int) -> None:
    for _ in range(5):
        telemetry.outcome(CLAIM, Outcome(OutcomeKind.RETURNED, 0.1), verdict(VerdictKind.COMPLETED))
    assert [record["event"] for record in log.records()] == ["task_completed"] * lines


def test_every_kind_of_outcome_has_a_line(telemetry: Telemetry, log: Log) -> None:
    kinds = [kind for kind in OutcomeKind if kind is not OutcomeKind.RETURNED]
    for kind in kinds:
        telemetry.outcome(CLAIM, Outcome(kind, 0.1, pid=5), None)
    records = log.records()
    assert len({record["event"] for record in records}) == len(kinds)
    assert {record["verdict"] for record in records} == {"discarded"}


def test_a_drain_does_not_print_its_backlog(telemetry: Telemetry, log: Log) -> None:
    for _ in range(1000):
        telemetry.outcome(CLAIM, Outcome(OutcomeKind.INTERRUPTED, 0.0), verdict(VerdictKind.RELEASED))
    assert log.records() == []


def test_verdicts_that_came_too_late_are_one_line_and_counted(telemetry: Telemetry, log: Log, directory: Path) -> None:
    telemetry.settled([verdict(VerdictKind.FAILED)], fenced=3, seconds=0.01)
    (record,) = log.records()
    assert (record["event"], record["level"], record["verdicts"]) == ("fenced", "warning", 3)
    assert Scraped.from_directory(directory).value("pgsched_fenced_total") == 3


def test_a_minute_is_summed_up_and_a_quiet_one_is_not(telemetry: Telemetry, log: Log) -> None:
    telemetry.claimed([CLAIM] * 7, skipped=0, failed=0, seconds=0.01)
    telemetry.settled([verdict(VerdictKind.COMPLETED)] * 4 + [verdict(VerdictKind.RETRY)], fenced=0, seconds=0.01)
    telemetry.sampled("active", 2)
    telemetry.summarise()
    telemetry.summarise()
    (record,) = log.records()
    assert record["event"] == "summary"
    assert (record["claimed"], record["completed"], record["retried"], record["active"]) == (7, 4, 1, 2)
    assert record["completed_per_second"] > 0


def test_the_last_summary_shows_nothing_running(telemetry: Telemetry, log: Log) -> None:
    telemetry.claimed([CLAIM], skipped=0, failed=0, seconds=0.01)
    telemetry.sampled("active", 2)
    telemetry.event("state", logging.INFO, state="stopped")
    telemetry.summarise()
    assert [record["active"] for record in log.records() if record["event"] == "summary"] == [0]


@pytest.mark.parametrize(
    ("reason", "level", "counted"),
    [
        ("crashed", "warning", 1),
        ("idle", "warning", 1),
        ("max_tasks", "info", 1),
        ("reloaded", "info", 1),
        ("stopped", "info", 0),
        ("resized", "info", 0),
    ],
)
def test_a_worker_that_ends_is_a_line_and_if_replaced_a_restart(
    telemetry: Telemetry, log: Log, directory: Path, reason: str, level: str, counted: int
) -> None:
    telemetry.pool_event("worker_ended", {"slot": 1, "pid": 5, "reason": reason})
    (record,) = log.records()
    assert (record["event"], record["level"], record["slot"], record["reason"]) == ("worker_ended", level, 1, reason)
    assert (Scraped.from_directory(directory).value("pgsched_worker_restarts_total", reason=reason) or 0) == counted


def test_reaping_is_told_and_counted(telemetry: Telemetry, log: Log, directory: Path) -> None:
    telemetry.reaped([])
    telemetry.reaped([CLAIM, CLAIM])
    (reaped,) = log.records()
    assert (reaped["event"], reaped["claims"]) == ("reaped", 2)
    assert Scraped.from_directory(directory).value("pgsched_reaped_total") == 2


def test_a_lease_that_is_late_or_lost_is_told_and_counted(telemetry: Telemetry, log: Log, directory: Path) -> None:
    telemetry.event("renewal_late", logging.WARNING, seconds=6.0, left=2.5)
    telemetry.event("lease_lost", logging.ERROR, supervisor=1, held=3, unwritten=0)
    assert [record["event"] for record in log.records()] == ["renewal_late", "lease_lost"]
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_late_renewals_total") == 1
    assert scraped.value("pgsched_leases_lost_total") == 1


def test_it_works_without_metrics(log: Log) -> None:
    telemetry = Telemetry(None)
    telemetry.claimed([CLAIM], skipped=0, failed=0, seconds=0.01)
    telemetry.settled([verdict(VerdictKind.COMPLETED)], fenced=0, seconds=0.01)
    telemetry.outcome(CLAIM, Outcome(OutcomeKind.RAISED, 0.1), verdict(VerdictKind.FAILED))
    telemetry.reaped([])
    telemetry.sampled("active", 1)
    telemetry.event("pool_started", logging.INFO, task_types=["compress"])
    telemetry.event("lease_lost", logging.ERROR, supervisor=1, held=3, unwritten=0)
    telemetry.pool_event("worker_ended", {"slot": 0, "reason": "crashed"})
    assert len(log.records()) == 4
