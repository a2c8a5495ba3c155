"""Horizon: a long drain while another session holds an old snapshot, against the same without.

While a snapshot is held, nothing that was deleted since can be removed: each claim and each settle leaves entries in
the indexes that every later statement might walk over. A queue that does so gets slower with every task. Both drains
are cut into ten equal parts, and the last part is what counts.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import NamedTuple

import psycopg

from benchmarks.ended import settled, slice_rates, wait_for_all, wait_for_task
from benchmarks.filling import queue_noops, quiet
from benchmarks.histogram import bucket_percentile
from benchmarks.scenario import Bench, Result
from benchmarks.snapshot import old_snapshot
from benchmarks.supervisors import supervisor

SLICES = 10
CLAIMS = "pgsched_claim_duration_seconds"

Buckets = Mapping[float, float]


class Drained(NamedTuple):
    """What one drain has shown."""

    rates: list[float]
    """Tasks a second in each slice; empty when there were too few tasks."""
    first_p99: float | None
    """Seconds that a claim took at most, in 99 of 100 cases, in the first slice."""
    last_p99: float | None
    dead_tuples: int
    """Left in the live partition at the end."""


def horizon(bench: Bench) -> list[Result]:
    """Measure both drains, each in a schema of its own."""
    tasks = int(bench.params.get("tasks", 3_000 if bench.quick else 500_000))
    without = _drain(bench, tasks, held=False)
    held = _drain(bench, tasks, held=True)
    return [
        Result("first_slice_ratio", _ratio(held.rates[:1], without.rates[:1]), ""),
        Result("last_slice_ratio", _ratio(held.rates[-1:], without.rates[-1:]), ""),
        *_figures("", held),
        *_figures("_without", without),
    ]


def _ratio(above: list[float], below: list[float]) -> float | None:
    return above[0] / below[0] if above and below else None


def _figures(suffix: str, drained: Drained) -> list[Result]:
    first, last = (None if p99 is None else p99 * 1e3 for p99 in (drained.first_p99, drained.last_p99))
    return [
        Result(f"first_slice_tasks_per_s{suffix}", drained.rates[0] if drained.rates else None, "1/s"),
        Result(f"last_slice_tasks_per_s{suffix}", drained.rates[-1] if drained.rates else None, "1/s"),
        Result(f"claim_p99_first_ms{suffix}", first, "ms"),
        Result(f"claim_p99_last_ms{suffix}", last, "ms"),
        Result(f"dead_tuples{suffix}", drained.dead_tuples, ""),
    ]


def _drain(bench: Bench, tasks: int, *, held: bool) -> Drained:
    name = "with an old snapshot" if held else "without"
    with bench.server.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        with old_snapshot(dsn) if held else nullcontext():
            bench.progress(f"{name}: queueing {tasks}")
            first_id = queue_noops(connection, tasks)
            quiet(connection)
            with supervisor(dsn, bench.processes) as running:
                claims: list[Buckets] = []
                for part in range(1, SLICES + 1):
                    bench.progress(f"{name}: slice {part} of {SLICES}")
                    wait_for_task(connection, first_id + tasks * part // SLICES - 1, [running])
                    claims.append(running.buckets(CLAIMS))
                wait_for_all(connection, tasks, [running])
        # A session reports what it has counted at its end, so not before the supervisor is gone.
        row = connection.execute("SELECT pg_stat_get_dead_tuples('scheduled_tasks_live'::regclass)").fetchone()
        assert row is not None
        first_p99 = bucket_percentile(claims[0], 0.99)
        last_p99 = bucket_percentile(_since(claims[-2], claims[-1]), 0.99)
        return Drained(slice_rates(settled(connection), SLICES), first_p99, last_p99, int(row[0]))


def _since(before: Buckets, after: Buckets) -> Buckets:
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
