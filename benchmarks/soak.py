"""Soak: a steady load of tasks that end in every way there is, for many minutes. Does anything grow?

At a fixed interval it notes what the processes have of memory and descriptors, how large tables, indexes and the
metrics' files are, and how fast claims and tasks go. After a warm-up the median of the last third is compared with that
of the first: what it is larger by is the growth, which should be nothing. Linux only, on this host.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.histogram import bucket_percentile
from benchmarks.processes import descriptors, pages, unique
from benchmarks.scenario import Bench, Result
from benchmarks.soaking import ROUND, Load
from benchmarks.supervisors import Supervisor, buckets_of, supervisor

RETENTION: Final = 60
"""Seconds that ended tasks are kept."""
WARM_UP: Final = 0.35
"""Of the whole time: until as many tasks are deleted as end, and everything has been used once."""
SAMPLES: Final = 120
TASKS_PER_WORKER: Final = 20_000
"""Then it is replaced, so that this too happens many times."""
CLAIMS: Final = "pgsched_claim_duration_seconds"
MIB: Final = 1024 * 1024
PER_UNIT: Final = {"MiB": MIB}

UNITS: Final[Mapping[str, str]] = {
    "parent_pss_mb": "MiB",
    "parent_unique_mb": "MiB",
    "parent_descriptors": "",
    "forkserver_pss_mb": "MiB",
    "forkserver_unique_mb": "MiB",
    "forkserver_descriptors": "",
    "worker_pss_mb": "MiB",
    "worker_unique_mb": "MiB",
    "worker_descriptors": "",
    "live_table_mb": "MiB",
    "live_index_mb": "MiB",
    "ended_table_mb": "MiB",
    "ended_index_mb": "MiB",
    "failures_mb": "MiB",
    "supervisors_mb": "MiB",
    "dead_tuples": "",
    "metrics_mb": "MiB",
    "metrics_files": "",
    "claim_p99_ms": "ms",
    "tasks_per_s": "1/s",
}

SIZES: Final = """
    WITH leaf AS (
        SELECT relation AS root, relid
        FROM unnest(ARRAY['scheduled_tasks_live', 'scheduled_tasks_ended', 'pgsched_supervisors',
                          'pgsched_failures']) AS relation
        CROSS JOIN LATERAL (
            SELECT relid FROM pg_partition_tree(relation::regclass) WHERE isleaf
            UNION SELECT relation::regclass
        ) AS part
    )
    SELECT sum(pg_table_size(relid)) FILTER (WHERE root = 'scheduled_tasks_live')::bigint AS live_table_mb,
           sum(pg_indexes_size(relid)) FILTER (WHERE root = 'scheduled_tasks_live')::bigint AS live_index_mb,
           sum(pg_table_size(relid)) FILTER (WHERE root = 'scheduled_tasks_ended')::bigint AS ended_table_mb,
           sum(pg_indexes_size(relid)) FILTER (WHERE root = 'scheduled_tasks_ended')::bigint AS ended_index_mb,
           sum(pg_total_relation_size(relid)) FILTER (WHERE root = 'pgsched_failures')::bigint AS failures_mb,
           sum(pg_total_relation_size(relid)) FILTER (WHERE root = 'pgsched_supervisors')::bigint AS supervisors_mb,
           sum(pg_stat_get_dead_tuples(relid))::bigint AS dead_tuples
    FROM leaf
"""

Sample = dict[str, float]
Points = Sequence[tuple[float, float]]


def soak(bench: Bench) -> list[Result]:
    """Watch one supervisor under load."""
    seconds = bench.params.get("minutes", 0.1 if bench.quick else 10.0) * 60
    rate = bench.params.get("rate", 100.0 if bench.quick else 500.0)
    options = ("--prune-older-than", str(RETENTION), "--max-tasks-per-worker", str(TASKS_PER_WORKER))
    metrics = bench.scratch / "metrics"
    env = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    with (
        psycopg.connect(bench.dsn, autocommit=True) as connection,
        supervisor(bench.dsn, bench.processes, *options, app="benchmarks.soaking:app", env=env) as running,
        _load(bench.dsn, rate) as load,
    ):
        samples = list(_samples(bench, connection, running, metrics, load, seconds))
    warm_up = seconds * WARM_UP
    series = {name: [(at, sample[name]) for at, sample in samples if name in sample] for name in UNITS}
    figures = [Result("warm_up_s", warm_up, "s"), Result("seconds", seconds, "s")]
    for name, points in series.items():
        figures += _figures(name, [(at, value) for at, value in points if at >= warm_up], points)
    return figures


def growth(points: Points) -> float | None:
    """By how much the median of the last third is above that of the first, as a part of it; None for too few points."""
    third = len(points) // 3
    if not third:
        return None
    first, last = (statistics.median(value for _, value in part) for part in (points[:third], points[-third:]))
    return 0.0 if first == last else (last - first) / max(first, 1e-9)


def _figures(name: str, measured: Points, points: Points) -> list[Result]:
    value = statistics.median(value for _, value in measured[-(len(measured) // 3) :]) if measured else None
    return [
        Result(name, value, UNITS[name], points),
        Result(f"{name.removesuffix('_mb').removesuffix('_ms')}_growth", growth(measured), ""),
    ]


@contextlib.contextmanager
def _load(dsn: str, rate: float) -> Iterator[Load]:
    load = Load(dsn, rate)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def _samples(
    bench: Bench, connection: psycopg.Connection, running: Supervisor, metrics: Path, load: Load, seconds: float
) -> Iterator[tuple[float, Sample]]:
    """One sample at each of the moments that are due, with its time since the beginning."""
    begin = time.monotonic()
    pace = _Pace(running)
    # A shorter interval than that of the load would see it come and go.
    count = max(min(SAMPLES, int(seconds / ROUND)), 1)
    for turn in range(1, count + 1):
        time.sleep(max(begin + seconds * turn / count - time.monotonic(), 0.0))
        if load.error is not None:
            raise RuntimeError(f"the load ended: {load.error}") from load.error
        sample = _processes(running) | table_sizes(connection) | _files(metrics) | pace.sample()
        bench.progress(f"{seconds - (time.monotonic() - begin):.0f} s to go, {sample['tasks_per_s']:.0f} tasks/s")
        scaled = {name: value / PER_UNIT.get(UNITS[name], 1) for name, value in sample.items()}
        yield time.monotonic() - begin, scaled


class _Pace:
    """How fast claims and tasks have gone since the last sample."""

    def __init__(self, running: Supervisor) -> None:
        self._running = running
        self._at, self._ended, self._claims = self._look()

    def sample(self) -> Sample:
        at, ended, claims = self._look()
        made = {bound: count - self._claims.get(bound, 0.0) for bound, count in claims.items()}
        found = {"tasks_per_s": (ended - self._ended) / (at - self._at)}
        if (p99 := bucket_percentile(made, 0.99)) is not None:
            found["claim_p99_ms"] = p99 * 1e3
        self._at, self._ended, self._claims = at, ended, claims
        return found

    def _look(self) -> tuple[float, float, dict[float, float]]:
        metrics = self._running.metrics()
        ended = sum(
            value
            for series, value in metrics.items()
            if series.startswith("pgsched_settled_total{") and ('"completed"' in series or '"failed"' in series)
        )
        return time.monotonic(), ended, buckets_of(metrics, CLAIMS)


def _processes(running: Supervisor) -> Sample:
    """Bytes and descriptors; of the workers, those of one in the middle, and the most descriptors."""
    sample: Sample = {}
    for name, pid in (("parent", running.pid), ("forkserver", running.forkserver())):
        memory = pages(pid)
        sample |= {
            f"{name}_pss_mb": memory["Pss"],
            f"{name}_unique_mb": unique(memory),
            f"{name}_descriptors": descriptors(pid),
        }
    weighed = []
    for pid in running.workers():
        # It may be gone by now.
        with contextlib.suppress(OSError, KeyError):
            memory = pages(pid)
            weighed.append((memory["Pss"], unique(memory), descriptors(pid)))
    if weighed:
        pss, own, opened = zip(*weighed, strict=True)
        sample |= {
            "worker_pss_mb": statistics.median(pss),
            "worker_unique_mb": statistics.median(own),
            "worker_descriptors": max(opened),
        }
    return sample


def table_sizes(connection: psycopg.Connection) -> Sample:
    cursor = connection.execute(SIZES)
    [row] = cursor.fetchall()
    return {column.name: float(value) for column, value in zip(cursor.description or (), row, strict=True)}


def _files(directory: Path) -> Sample:
    """What there is below a directory; a file that goes meanwhile is none."""
    sizes = []
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                sizes.append(os.stat(path).st_size)
    return {"metrics_mb": sum(sizes), "metrics_files": len(sizes)}
