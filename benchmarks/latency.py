"""Latency: the workers are idle, one task comes at a time; how long until its first line runs?

Three ways: a row that is due at once with NOTIFY, the same with ``--poll-only``, and rows that were queued ahead of
their time. Between two samples everything comes to rest again; that pause is not measured. Start-up and first
statements are left out: a few tasks run before the first sample.

A pickup is counted from the moment at which the committing call returned to its caller. On few processors the worker
may win that race, so the same is also given from the moment before the INSERT was sent, which holds its execution and
the wait for the disk as well. ``bare_`` is the least that a pickup can cost here, see :mod:`benchmarks.bare`.
"""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks import bare
from benchmarks.figures import percentile
from benchmarks.scenario import Bench, Result
from benchmarks.stamps import now, read
from benchmarks.supervisors import supervisor

WARM_UP = 10
AT_ONCE = 5
"""Tasks scheduled together: few enough that hardly two of them are due in the same milliseconds."""
AHEAD = (0.2, 0.9)
REST = (0.02, 0.04)
"""Seconds between two samples: a hundred times what the supervisor needs to come to rest."""
POLL_INTERVAL = 1.0
"""The default of ``--poll-interval``. Samples without NOTIFY come at any moment of it, and each costs as much time."""
LATE = 30.0
"""Seconds after which a task that has not started never will."""

NOW = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at)
    VALUES ('stamp', jsonb_build_object('path', %s::text, 'number', %s::integer), now())
"""
LATER = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at)
    SELECT 'stamp', jsonb_build_object('path', %s::text, 'number', sample.number),
           clock_timestamp() + make_interval(secs => sample.ahead)
    FROM unnest(%s::integer[], %s::float8[]) AS sample (number, ahead)
    RETURNING (payload ->> 'number')::integer, (date_part('epoch', run_at) * 1e9)::bigint
"""


class Pickup(NamedTuple):
    """Milliseconds until the first line of one task ran."""

    from_commit: float
    from_insert: float


def latency(bench: Bench) -> list[Result]:
    """Measure idle pickups with and without NOTIFY, and how late scheduled tasks start."""
    samples = int(bench.params.get("tasks", 10 if bench.quick else 300))
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        probe = _Probe(connection, bench.scratch, bench.progress)
        with supervisor(bench.dsn, bench.processes):
            probe.warm_up()
            woken = probe.pickups(samples, REST, "with NOTIFY")
            scheduled = probe.scheduled(samples) if bench.server.local else None
        with supervisor(bench.dsn, bench.processes, "--poll-only"):
            probe.warm_up()
            # A sixth of the samples: each one costs half a poll interval, and another one of rest.
            polled = probe.pickups(max(samples // 6, 1), (0.0, POLL_INTERVAL), "polling")
        with bare.bare(bench.dsn, connection):
            least = probe.pickups(samples, REST, "the least", bare.NOW)
    return [
        *_figures("", woken),
        *_scheduled_figures(scheduled),
        *_figures("poll_only_", polled),
        *_figures("bare_", least),
        Result("pickup_vs_bare", _median(woken) / _median(least), ""),
    ]


def _median(pickups: list[Pickup]) -> float:
    return statistics.median(pickup.from_commit for pickup in pickups)


def _figures(prefix: str, pickups: list[Pickup]) -> list[Result]:
    from_commit = [pickup.from_commit for pickup in pickups]
    from_insert = [pickup.from_insert for pickup in pickups]
    return [
        Result(f"{prefix}pickup_p50_ms", percentile(from_commit, 50), "ms"),
        Result(f"{prefix}pickup_p99_ms", percentile(from_commit, 99), "ms"),
        Result(f"{prefix}pickup_from_insert_p50_ms", percentile(from_insert, 50), "ms"),
        Result(f"{prefix}pickup_from_insert_p99_ms", percentile(from_insert, 99), "ms"),
    ]


def _scheduled_figures(late: list[float] | None) -> list[Result]:
    """``run_at`` is by the server's clock: with the server elsewhere, nothing here can tell how late a start is."""
    return [
        Result("scheduled_p50_ms", None if late is None else percentile(late, 50), "ms"),
        Result("scheduled_p99_ms", None if late is None else percentile(late, 99), "ms"),
    ]


class _Probe:
    """Queues samples and finds out when each began."""

    def __init__(self, connection: psycopg.Connection, scratch: Path, progress: Callable[[str], None]) -> None:
        self._connection = connection
        self._stamps = scratch / "stamps"
        self._progress = progress
        self._number = 0

    def warm_up(self) -> None:
        for _ in range(WARM_UP):
            self._pickup(REST)

    def pickups(self, samples: int, rest: tuple[float, float], what: str, insert: str = NOW) -> list[Pickup]:
        """Queue one due task after the other."""
        pickups = []
        for sample in range(samples):
            self._progress(f"pickup {what} {sample + 1}/{samples}")
            pickups.append(self._pickup(rest, insert))
        return pickups

    def scheduled(self, samples: int) -> list[float]:
        """Queue tasks ahead of their time; return by how many milliseconds each started late."""
        late: list[float] = []
        while len(late) < samples:
            self._progress(f"scheduled {len(late)}/{samples}")
            numbers = [self._next() for _ in range(min(AT_ONCE, samples - len(late)))]
            ahead = [random.uniform(*AHEAD) for _ in numbers]
            due: dict[int, int] = dict(self._connection.execute(LATER, [str(self._stamps), numbers, ahead]).fetchall())
            time.sleep(max(ahead))
            started = self._wait(numbers)
            late += [(started[number][1] - due[number]) / 1e6 for number in numbers]
        return late

    def _pickup(self, rest: tuple[float, float], insert: str = NOW) -> Pickup:
        number = self._next()
        before = now()
        self._connection.execute(insert.encode(), [str(self._stamps), number])
        committed = now()
        # Looking for the stamp at once would take the processor from what is measured.
        time.sleep(REST[0])
        started, _ = self._wait([number])[number]
        time.sleep(random.uniform(*rest))
        return Pickup((started - committed) / 1e6, (started - before) / 1e6)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _wait(self, numbers: list[int]) -> dict[int, tuple[int, int]]:
        """Wait until these have started; return both clocks' moments of each."""
        deadline = time.monotonic() + LATE
        while True:
            started = {number: (monotonic, wall) for number, monotonic, wall in read(self._stamps)}
            if all(number in started for number in numbers):
                return started
            if time.monotonic() > deadline:
                raise RuntimeError(f"a task did not start within {LATE:g} s")
            time.sleep(0.01)
