"""Paced: producers queue so many tasks a second while one supervisor drains them. Does it keep up, and at what cost?

The producers are processes of their own. Each sends an INSERT of fifty rows whenever one is due, and falls behind only
if the server makes it. One task in fifty notes when it started; its delay counts from the moment at which the
committing call returned. The tasks do nothing else.
"""

import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.figures import percentile
from benchmarks.histogram import bucket_percentile
from benchmarks.scenario import Bench, Result
from benchmarks.stamps import note, now, read
from benchmarks.supervisors import Supervisor, supervisor

BATCH = 50
"""Rows of one INSERT; one of them is a sample."""
PRODUCERS = 2
BEGIN_IN = 1.5
"""Seconds that the producers get to be started."""
COUNT_EVERY = 0.25
DRAIN_WITHIN = 120.0

INSERT = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at)
    SELECT 'stamp', payload::jsonb, now() FROM unnest(%s::text[]) AS payload
"""


class Moment(NamedTuple):
    """What has been used up to now."""

    at: float
    postgres: float | None
    supervisor: float
    workers: float
    claims: dict[float, float]
    """Upper bounds in seconds and how many claims took at most so long."""


def paced(bench: Bench) -> list[Result]:
    """Measure a minute at a steady rate, after a warm-up."""
    rate = bench.params.get("rate", 500.0 if bench.quick else 11_000.0)
    seconds = bench.params.get("seconds", 3.0 if bench.quick else 60.0)
    warm_up = max(seconds / 12, 1.0)
    stamps, commits = bench.scratch / "stamps", bench.scratch / "commits"
    with (
        psycopg.connect(bench.dsn, autocommit=True) as connection,
        supervisor(bench.dsn, bench.processes) as running,
    ):
        begin = time.monotonic() + BEGIN_IN
        with _producers(bench.dsn, rate, begin, begin + seconds, stamps, commits):
            time.sleep(max(begin + warm_up - time.monotonic(), 0.0))
            first = _moment(bench, running)
            depths = _watch(bench, connection, begin + seconds)
            last = _moment(bench, running)
        offered = len(read(commits)) * BATCH / seconds
        _wait_until_drained(bench, connection)
        last_seen = now()
    return [
        Result("offered_per_s", offered, "1/s"),
        Result("backlog_growth", _growth(depths), "1/s"),
        Result("backlog_p50", percentile([float(depth) for _, depth in depths], 50), ""),
        *_poll_figures(first, last),
        *_start_figures(read(commits), read(stamps), begin + warm_up, last_seen),
        *_cores(first, last),
    ]


def _growth(depths: list[tuple[float, int]]) -> float:
    """Tasks a second by which the backlog grows: the slope of a line through all counts, because each count alone lies
    anywhere between nothing and the last INSERTs."""
    times, counts = zip(*depths, strict=True)
    return statistics.linear_regression(times, counts).slope


def _poll_figures(first: Moment, last: Moment) -> list[Result]:
    """The supervisor's own histogram of round trips that claimed; each also settles what has ended meanwhile. The
    percentile is interpolated within a bucket; see :mod:`benchmarks.histogram`."""
    claims = {bound: count - first.claims.get(bound, 0.0) for bound, count in last.claims.items()}
    median, worst = bucket_percentile(claims, 0.5), bucket_percentile(claims, 0.99)
    return [
        Result("poll_p50_ms", None if median is None else median * 1e3, "ms"),
        Result("poll_p99_ms", None if worst is None else worst * 1e3, "ms"),
        Result("polls_per_s", max(claims.values(), default=0.0) / (last.at - first.at), "1/s"),
    ]


def _start_figures(
    commits: list[tuple[int, ...]], stamps: list[tuple[int, ...]], since: float, last_seen: int
) -> list[Result]:
    """How late the samples started. One that never did is as late as the end of the run, at least."""
    started = {number: at for number, at, _ in stamps}
    counted = [(number, before, after) for number, before, after in commits if after >= since * 1e9]
    from_commit = [(started.get(number, last_seen) - after) / 1e6 for number, _, after in counted]
    from_insert = [(started.get(number, last_seen) - before) / 1e6 for number, before, _ in counted]
    inserts = [(after - before) / 1e6 for _, before, after in counted]
    return [
        Result("start_p50_ms", percentile(from_commit, 50), "ms"),
        Result("start_p99_ms", percentile(from_commit, 99), "ms"),
        Result("start_from_insert_p99_ms", percentile(from_insert, 99), "ms"),
        Result("insert_p50_ms", percentile(inserts, 50), "ms"),
    ]


def _cores(first: Moment, last: Moment) -> list[Result]:
    wall = last.at - first.at
    known = first.postgres is not None and last.postgres is not None
    return [
        Result("postgres_cores", ((last.postgres or 0.0) - (first.postgres or 0.0)) / wall if known else None, ""),
        Result("supervisor_cores", (last.supervisor - first.supervisor) / wall, ""),
        Result("worker_cores", (last.workers - first.workers) / wall, ""),
    ]


def _watch(bench: Bench, connection: psycopg.Connection, end: float) -> list[tuple[float, int]]:
    """Count what is queued until the end."""
    depths = []
    while (at := time.monotonic()) < end:
        row = connection.execute("SELECT count(*) FROM scheduled_tasks_live WHERE status = 'queued'").fetchone()
        assert row is not None
        depths.append((at, int(row[0])))
        bench.progress(f"{end - at:.0f} s to go, {row[0]} queued")
        time.sleep(COUNT_EVERY)
    return depths


def _wait_until_drained(bench: Bench, connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + DRAIN_WITHIN
    while time.monotonic() < deadline:
        row = connection.execute("SELECT count(*) FROM scheduled_tasks_live").fetchone()
        if row is None or row[0] == 0:
            return
        bench.progress(f"draining, {row[0]} left")
        time.sleep(COUNT_EVERY)


def _moment(bench: Bench, running: Supervisor) -> Moment:
    claims = running.buckets("pgsched_claim_duration_seconds")
    return Moment(
        time.monotonic(), bench.server.cpu_seconds(), running.cpu_seconds(), running.workers_cpu_seconds(), claims
    )


@contextmanager
def _producers(dsn: str, rate: float, begin: float, end: float, stamps: Path, commits: Path) -> Iterator[None]:
    """Run the producers; the body ends when they do, or they are ended."""
    context = multiprocessing.get_context("spawn")
    producers = [
        context.Process(
            target=_produce,
            args=(dsn, rate / PRODUCERS, begin + turn * BATCH / rate, end, turn, str(stamps), str(commits)),
            daemon=True,
        )
        for turn in range(PRODUCERS)
    ]
    try:
        for producer in producers:
            producer.start()
        yield
        for producer in producers:
            producer.join(60)
            if producer.exitcode != 0:
                raise RuntimeError(f"a producer ended with {producer.exitcode}")
    finally:
        for producer in producers:
            if producer.is_alive():
                producer.kill()
                producer.join()


def _produce(dsn: str, rate: float, begin: float, end: float, turn: int, stamps: str, commits: str) -> None:
    """Send an INSERT each time one is due, late ones at once; note when its one sample was committed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        number, due = turn, begin
        while due < end:
            time.sleep(max(due - time.monotonic(), 0.0))
            payloads = ["{}"] * BATCH
            payloads[random.randrange(BATCH)] = json.dumps({"path": stamps, "number": number})
            before = now()
            connection.execute(INSERT, [payloads])
            note(commits, number, before, now())
            number += PRODUCERS
            due += BATCH / rate
