"""The supervisor's metrics: what each event counts, under which names, and what it costs."""

import asyncio
import errno
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pgsched.model import Claim, Failure, Outcome, OutcomeKind, Verdict, VerdictKind
from pgsched.ops import children, exposition
from pgsched.ops.collector import DirectoryCollector
from pgsched.ops.directory import RESERVED, reserve
from pgsched.ops.exposition import Exposition
from pgsched.ops.metrics import Metrics
from tests.scraped import Scraped
from tests.support import ROOT

ARTICLE = {
    "scheduler_task_execution_duration_seconds": (
        "histogram",
        {"task_type", "status"},
        "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0 10.0 +Inf",
    ),
    "scheduler_task_latency_seconds": ("histogram", {"task_type"}, "0.1 0.5 1.0 2.5 5.0 10.0 30.0 60.0 +Inf"),
    "scheduler_active_workers": ("gauge", set(), ""),
    "scheduler_lock_attempts": ("counter", {"result"}, ""),
}
"""Names, types, labels and buckets of the article's four metrics; the parser takes ``_total`` off a counter."""


@pytest.fixture
def metrics(directory: Path) -> Iterator[Metrics]:
    metrics = Metrics(directory)
    metrics.know(["compress", "mail"])
    yield metrics
    metrics.close()


def claim(task_id: int = 1, task_type: str = "compress") -> Claim:
    return Claim(task_id, 7, task_type, "default", 0, "{}", 0, 3, None, 0.2, "2026-01-01")


def verdict(
    kind: VerdictKind, outcome: OutcomeKind = OutcomeKind.RETURNED, task_type: str = "compress", task_id: int = 1
) -> Verdict:
    return Verdict(claim(task_id, task_type), kind, 0.1, outcome=outcome)


def test_the_articles_metrics_have_its_names_labels_and_buckets(metrics: Metrics, directory: Path) -> None:
    killed = Failure(error="killed by signal 9 (SIGKILL)", signal=9)
    metrics.outcome(claim(), Outcome(OutcomeKind.CRASHED, 0.3, failure=killed, slot=0, pid=1), None)
    metrics.claimed([claim()], skipped=1, failed=1, seconds=0.001)
    scraped = Scraped.from_directory(directory)
    for name, (kind, labels, bounds) in ARTICLE.items():
        family = scraped.families[name]
        assert family.type == kind, name
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == labels, name
        found = dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels)
        assert " ".join(found) == bounds, name
    results = {sample.labels["result"] for sample in scraped.families["scheduler_lock_attempts"].samples}
    assert results == {"acquired", "skipped", "failed"}


def test_a_claim_counts_what_it_got_and_what_it_did_not(metrics: Metrics, directory: Path) -> None:
    metrics.claimed([claim(1), claim(2), claim(3, "mail")], skipped=4, failed=5, seconds=0.0007)
    scraped = Scraped.from_directory(directory)
    assert scraped.value("scheduler_lock_attempts_total", result="acquired") == 3
    assert scraped.value("scheduler_lock_attempts_total", result="skipped") == 4
    assert scraped.value("scheduler_lock_attempts_total", result="failed") == 5
    assert scraped.value("pgsched_claimed_total", task_type="compress") == 2
    assert scraped.value("pgsched_claimed_total", task_type="mail") == 1
    assert scraped.value("pgsched_claim_duration_seconds_bucket", le="0.0005") == 0
    assert scraped.value("pgsched_claim_duration_seconds_bucket", le="0.001") == 1


def test_a_settle_counts_verdicts_and_failures(metrics: Metrics, directory: Path) -> None:
    verdicts = [
        verdict(VerdictKind.COMPLETED),
        verdict(VerdictKind.COMPLETED),
        verdict(VerdictKind.RETRY, OutcomeKind.CRASHED),
        verdict(VerdictKind.FAILED, OutcomeKind.CRASHED),
        verdict(VerdictKind.FAILED, OutcomeKind.TIMED_OUT, "mail"),
        verdict(VerdictKind.RELEASED, OutcomeKind.INTERRUPTED),
    ]
    metrics.settled(verdicts, fenced=2, seconds=0.01)
    scraped = Scraped.from_directory(directory)
    settled = {
        (sample.labels["task_type"], sample.labels["verdict"]): sample.value
        for sample in scraped.families["pgsched_settled"].samples
        if sample.value
    }
    assert settled == {
        ("compress", "completed"): 2,
        ("compress", "retry"): 1,
        ("compress", "failed"): 1,
        ("compress", "released"): 1,
        ("mail", "failed"): 1,
    }
    assert scraped.value("pgsched_failures_total", task_type="compress", outcome="crashed") == 2
    assert scraped.value("pgsched_failures_total", task_type="mail", outcome="timed_out") == 1
    assert scraped.total("pgsched_failures_total") == 3
    assert scraped.value("pgsched_fenced_total") == 2
    assert scraped.value("pgsched_settle_duration_seconds_count") == 1


def test_known_types_are_there_from_the_start_at_zero(metrics: Metrics, directory: Path) -> None:
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_settled_total", task_type="mail", verdict="failed") == 0
    assert scraped.value("pgsched_claimed_total", task_type="mail") == 0
    assert scraped.value("scheduler_active_workers") == 0
    assert scraped.value("scheduler_lock_attempts_total", result="failed") == 0


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (OutcomeKind.CRASHED, "failed"),
        (OutcomeKind.TIMED_OUT, "failed"),
        (OutcomeKind.OVER_MEMORY, "failed"),
        (OutcomeKind.CANCELLED, "cancelled"),
        (OutcomeKind.INTERRUPTED, "interrupted"),
    ],
)
def test_an_attempt_that_took_its_worker_along_is_timed_by_the_parent(
    metrics: Metrics, directory: Path, kind: OutcomeKind, status: str
) -> None:
    killed = Failure(error="killed by signal 9 (SIGKILL)", signal=9)
    metrics.outcome(claim(), Outcome(kind, 0.3, failure=killed, slot=0, pid=1), verdict(VerdictKind.RETRY, kind))
    scraped = Scraped.from_directory(directory)
    name = "scheduler_task_execution_duration_seconds"
    assert scraped.value(f"{name}_count", task_type="compress", status=status) == 1
    assert scraped.value(f"{name}_sum", task_type="compress", status=status) == 0.3
    assert scraped.total(f"{name}_count") == 1


def test_an_attempt_that_its_worker_reported_is_not_timed_twice(metrics: Metrics, directory: Path) -> None:
    failure = Failure(error="ValueError: no")
    for kind in (OutcomeKind.RETURNED, OutcomeKind.RAISED, OutcomeKind.TIMED_OUT, OutcomeKind.INTERRUPTED):
        metrics.outcome(claim(), Outcome(kind, 0.3, failure=failure, slot=0, pid=1), verdict(VerdictKind.RETRY, kind))
    assert Scraped.from_directory(directory).total("scheduler_task_execution_duration_seconds_count") == 0


def test_an_outcome_without_a_claim_is_discarded(metrics: Metrics, directory: Path) -> None:
    metrics.outcome(claim(), Outcome(OutcomeKind.CANCELLED, 0.3), None)
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_discarded_total", task_type="compress", outcome="cancelled") == 1
    assert scraped.total("pgsched_failures_total") == 0


def test_gauges_show_one_series_without_a_process_label(metrics: Metrics, directory: Path) -> None:
    metrics.sampled("active", 3)
    metrics.sampled("active", 2)
    metrics.sampled("lease_remaining_seconds", -1.5)
    metrics.sampled("slots", 4, state="idle")
    metrics.sampled("queue_depth", 12, queue="default", state="queued")
    metrics.sampled("nobody_knows", 1)
    scraped = Scraped.from_directory(directory)
    assert scraped.value("scheduler_active_workers") == 2
    assert scraped.value("pgsched_lease_remaining_seconds") == -1.5
    assert scraped.value("pgsched_slots", state="idle") == 4
    assert scraped.value("pgsched_queue_depth", queue="default", state="queued") == 12
    assert "nobody_knows" not in scraped.text
    assert "pid=" not in scraped.text


def test_a_gauge_that_is_unknown_is_in_no_scrape(metrics: Metrics, directory: Path) -> None:
    assert "pgsched_reaper_last_success_timestamp_seconds" not in Scraped.from_directory(directory).families
    metrics.sampled("oldest_due_seconds", 3, queue="a")
    metrics.sampled("oldest_due_seconds", 4, queue="b")
    metrics.sampled("oldest_due_seconds", math.nan, queue="a")
    metrics.sampled("oldest_snapshot_seconds", 5)
    scraped = Scraped.from_directory(directory)
    assert [sample.labels for sample in scraped.families["pgsched_oldest_due_seconds"].samples] == [{"queue": "b"}]
    assert scraped.value("pgsched_oldest_snapshot_seconds") == 5
    metrics.sampled("oldest_snapshot_seconds", math.nan)
    metrics.sampled("oldest_due_seconds", 6, queue="a")
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_oldest_due_seconds", queue="a") == 6
    assert "pgsched_oldest_snapshot_seconds" not in scraped.families


def test_a_total_never_falls(metrics: Metrics, directory: Path) -> None:
    for seconds in (2.0, 5.0, 4.5, 5.5):
        metrics.sampled("slot_busy_seconds", seconds, slot="0")
        metrics.sampled("slot_busy_seconds", seconds / 2, slot="1")
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_slot_busy_seconds_total", slot="0") == 5.5
    assert scraped.value("pgsched_slot_busy_seconds_total", slot="1") == 2.75


def test_a_restart_that_matters_has_a_series_from_the_start(metrics: Metrics, directory: Path) -> None:
    """Who counts the increase of a counter does not see one that appears with 1."""
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_worker_restarts_total", reason="crashed") == 0
    assert scraped.value("pgsched_failures_total", task_type="mail", outcome="lost") == 0


def test_what_happens_now_and_then(metrics: Metrics, directory: Path) -> None:
    before = time.time()
    metrics.reaped([])
    metrics.reaped([claim(), claim(2)])
    metrics.restarted("crashed")
    metrics.restarted("crashed")
    metrics.database_lost()
    metrics.renewal_late()
    metrics.lease_lost()
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_reaped_total") == 2
    assert before <= (scraped.value("pgsched_reaper_last_success_timestamp_seconds") or 0) <= time.time()
    assert scraped.value("pgsched_worker_restarts_total", reason="crashed") == 2
    assert scraped.value("pgsched_database_outages_total") == 1
    assert scraped.value("pgsched_late_renewals_total") == 1
    assert scraped.value("pgsched_leases_lost_total") == 1


def test_rows_cannot_make_up_labels(metrics: Metrics, directory: Path) -> None:
    for number in range(1000):
        metrics.claimed([claim(number, f"made-up-{number}")], skipped=0, failed=0, seconds=0.001)
        metrics.settled([verdict(VerdictKind.FAILED, OutcomeKind.LOST, f"x{number}")], fenced=0, seconds=0.001)
        metrics.sampled("task_cpu_seconds", number, task_type=f"x{number}")
    scraped = Scraped.from_directory(directory)
    assert scraped.value("pgsched_claimed_total", task_type="(unknown)") == 1000
    assert scraped.value("pgsched_failures_total", task_type="(unknown)", outcome="lost") == 1000
    assert scraped.value("pgsched_task_cpu_seconds_total", task_type="(unknown)") == sum(range(1000))
    assert len(scraped.families["pgsched_task_cpu_seconds"].samples) == 1


def test_many_types_and_queues_have_their_blocks_before_they_are_written(metrics: Metrics, directory: Path) -> None:
    """A write into a hole of a mapped file is a SIGBUS where the disk is full."""
    _many(metrics)
    for path in directory.glob("*_supervisor.db"):
        status = path.stat()
        assert status.st_blocks * 512 >= status.st_size, path
        assert (status.st_size > RESERVED) == (not path.name.startswith("histogram")), path
    scraped = Scraped.from_directory(directory)
    assert scraped.total("pgsched_claimed_total") == 200
    assert scraped.total("pgsched_queue_depth") == 2 * sum(range(200))


def test_what_has_no_room_is_not_counted_until_there_is_some(
    metrics: Metrics, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(children, "reserve", full)
        _many(metrics)
        metrics.claimed([claim()], skipped=0, failed=0, seconds=0.001)
        scraped = Scraped.from_directory(directory)
        assert {path.stat().st_size for path in directory.glob("*_supervisor.db")} == {RESERVED}
        assert scraped.value("pgsched_claimed_total", task_type="compress") == 1
        assert scraped.value("pgsched_claimed_total", task_type="type-199") is None
    metrics.claimed([claim(task_type="type-199")], skipped=0, failed=0, seconds=0.001)
    assert Scraped.from_directory(directory).value("pgsched_claimed_total", task_type="type-199") == 1


def _many(metrics: Metrics) -> None:
    """As many task types and queues as get series of their own, each counted once."""
    types = [f"type-{number}" for number in range(200)]
    metrics.know(types)
    metrics.claimed([claim(task_type=each) for each in types], skipped=0, failed=0, seconds=0.001)
    metrics.settled([verdict(VerdictKind.COMPLETED, task_type=each) for each in types], fenced=0, seconds=0.001)
    for number in range(200):
        metrics.sampled("queue_depth", number, queue=f"a queue with a longer name {number}", state="queued")
        metrics.sampled("queue_depth", number, queue=f"a queue with a longer name {number}", state="processing")
        metrics.sampled("oldest_due_seconds", number, queue=f"a queue with a longer name {number}")
        metrics.sampled("due_tasks", number, task_type=f"type-{number}")
        metrics.sampled("task_cpu_seconds", number, task_type=f"type-{number}")


def test_a_batch_of_500_costs_far_less_than_500_counts(metrics: Metrics) -> None:
    claims = [claim(number) for number in range(500)]
    verdicts = [verdict(VerdictKind.COMPLETED, task_id=number) for number in range(500)]
    best = min(_seconds(metrics, claims, verdicts) for _ in range(20))
    # One prometheus_client inc() a task would be some 0.5 ms for each of the two.
    assert best < 0.0006


def _seconds(metrics: Metrics, claims: list[Claim], verdicts: list[Verdict]) -> float:
    started = time.perf_counter()
    metrics.claimed(claims, skipped=0, failed=0, seconds=0.001)
    metrics.settled(verdicts, fenced=0, seconds=0.001)
    return time.perf_counter() - started


class TestExposition:
    def test_the_format_follows_the_accept_header(self, metrics: Metrics, directory: Path) -> None:
        async def scenario() -> None:
            shown = _exposition(directory)
            plain = await shown.get("")
            assert plain.content_type == "text/plain; version=0.0.4; charset=utf-8"
            openmetrics = await shown.get("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4")
            assert openmetrics.content_type.startswith("application/openmetrics-text; version=1.0.0")
            assert openmetrics.body.endswith(b"# EOF\n")
            for nonsense in ("application/openmetrics-text;version=x.y", ";;,=", "a" * 5000):
                assert b"scheduler_active_workers" in (await shown.get(nonsense)).body

        asyncio.run(scenario())

    def test_the_supervisors_own_process_is_shown(self, metrics: Metrics, directory: Path) -> None:
        scraped = Scraped.from_directory(directory)
        assert (scraped.value("process_resident_memory_bytes") or 0) > 1e6
        assert (scraped.value("process_open_fds") or 0) > 3

    def test_a_storm_is_served_by_few_builds_and_none_is_stale(
        self, metrics: Metrics, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = _exposition(directory)
        builds: list[float] = []
        running = [0]

        def slow(encoder: exposition.Encoder) -> bytes:
            running[0] += 1
            assert running[0] == 1
            builds.append(time.monotonic())
            time.sleep(0.02)
            running[0] -= 1
            return b"begun %r" % builds[-1]

        monkeypatch.setattr(shown, "render", slow)

        async def client(until: float) -> None:
            while (asked := time.monotonic()) < until or len(builds) < 2:
                body = (await shown.get("")).body
                assert float(body.removeprefix(b"begun ")) >= asked

        async def scenario() -> None:
            until = time.monotonic() + 0.5
            await asyncio.gather(*(client(until) for _ in range(30)))

        asyncio.run(scenario())
        assert 2 <= len(builds) <= 8

    def test_a_client_that_hangs_up_does_not_take_it_away_from_others(self, metrics: Metrics, directory: Path) -> None:
        async def scenario() -> None:
            shown = _exposition(directory)
            first = asyncio.create_task(shown.get(""))
            second = asyncio.create_task(shown.get(""))
            await asyncio.sleep(0)
            first.cancel()
            assert b"scheduler_active_workers" in (await second).body

        asyncio.run(scenario())

    def test_f45_a_label_that_cannot_be_shown_costs_its_own_metric_only(
        self, metrics: Metrics, directory: Path
    ) -> None:
        metrics.know(["half\udc80"])
        complaints: list[tuple[str, str]] = []
        shown = Exposition(DirectoryCollector(directory, print), lambda name, why: complaints.append((name, why)))
        for _ in range(3):
            page = shown.render()
        assert b"scheduler_lock_attempts_total" in page
        assert b"pgsched_settled" not in page
        assert sorted(name for name, _ in complaints) == ["pgsched_claimed", "pgsched_failures", "pgsched_settled"]


class TestTidyingUp:
    def test_it_goes_on_whatever_one_look_has_met(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[tuple[str, str]] = []
        collector = DirectoryCollector(directory, lambda name, reason: None)
        shown = Exposition(collector, lambda name, reason: told.append((name, reason)))
        troubles = [RuntimeError("can't start new thread"), OSError(errno.ENOSPC, "No space left on device")]

        async def scenario() -> None:
            tidied = asyncio.Event()

            async def begin(work: Callable[[], None]) -> None:
                if troubles:
                    raise troubles.pop(0)
                assert work == collector.tidy
                tidied.set()

            monkeypatch.setattr(asyncio, "to_thread", begin)
            monkeypatch.setattr(exposition, "TIDY_INTERVAL", 0.001)
            tidying = asyncio.create_task(shown.tidy_up())
            await asyncio.wait({tidying, asyncio.create_task(tidied.wait())}, return_when=asyncio.FIRST_COMPLETED)
            assert not tidying.done()
            tidying.cancel()

        asyncio.run(scenario())
        assert told == [
            ("directory", "cannot be tidied up: RuntimeError: can't start new thread"),
            ("directory", "cannot be tidied up: OSError: [Errno 28] No space left on device"),
        ]

    def test_a_file_that_cannot_be_added_up_keeps_no_other_from_going(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(path: Path, size: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        names = ["counter_2147483646.db", "gauge_all_2147483646.db", "counter_2147483647.db", "gauge_all_2147483647.db"]
        for name in names:
            reserve(directory / name)
        collector = DirectoryCollector(directory, lambda name, reason: None)
        with monkeypatch.context() as patch:
            patch.setattr("pgsched.ops.collector.reserve", full)
            with pytest.raises(OSError, match="No space left"):
                collector.tidy()
        assert sorted(path.name for path in directory.iterdir()) == [names[0], names[2]]
        collector.tidy()
        assert [path.name for path in directory.iterdir()] == ["counter_ended.db"]


def _exposition(directory: Path) -> Exposition:
    return Exposition(DirectoryCollector(directory, print), print)


def test_our_metrics_do_not_meet_the_users(metrics: Metrics) -> None:
    """The default registry is the user's; ours go to the directory only."""
    from prometheus_client import REGISTRY

    assert isinstance(REGISTRY, CollectorRegistry)
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith(("pgsched", "scheduler"))]


def test_the_documentation_names_every_metric(metrics: Metrics, directory: Path) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE
    )
    documented = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    _count_everything(metrics)
    found = {}
    for name, family in Scraped.from_directory(directory).families.items():
        if not name.startswith("process_"):
            labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
            found[f"{name}_total" if family.type == "counter" else name] = (family.type, labels)
    assert found == documented


def _count_everything(metrics: Metrics) -> None:
    killed = Failure(error="killed by signal 9 (SIGKILL)", signal=9)
    metrics.claimed([claim()], skipped=1, failed=1, seconds=0.001)
    metrics.settled([verdict(VerdictKind.FAILED, OutcomeKind.CRASHED)], fenced=1, seconds=0.001)
    metrics.outcome(claim(), Outcome(OutcomeKind.CRASHED, 0.3, failure=killed), None)
    metrics.reaped([claim()])
    metrics.restarted("crashed")
    metrics.database_lost()
    for name in ("active", "held", "backlog", "lease_seconds", "lease_remaining_seconds"):
        metrics.sampled(name, 1)
    for name in ("oldest_snapshot_seconds", "oldest_snapshot_transactions"):
        metrics.sampled(name, 1)
    for name in ("table_rows", "table_dead_rows", "table_bytes"):
        metrics.sampled(name, 1, table="scheduled_tasks_live")
    metrics.sampled("due_tasks", 1, task_type="mail")
    metrics.sampled("slot_busy_seconds", 1, slot="0")
    metrics.sampled("task_cpu_seconds", 1, task_type="mail")
    metrics.sampled("slots", 1, state="idle")
    metrics.sampled("queue_depth", 1, queue="default", state="queued")
    metrics.sampled("oldest_due_seconds", 1, queue="default")
