"""Retention: how long do ten million ended tasks take to go, and what do they leave behind?

Once as a range that is dropped as a whole, as a supervisor's prune does it, and once row by row, in the batches that
take what stands in no range; those on fewer rows, because they take their time. What is left behind is the size of the
ended tasks' tables and indexes afterwards.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import psycopg

from benchmarks.filling import fill, quiet
from benchmarks.scenario import Bench, Result
from pgsched.store.store import Store
from pgsched.supervisor.pruning import BATCH

DAY = 86400.0
DROPPED, QUICK_DROPPED = 10_000_000, 5_000
DELETED, QUICK_DELETED = 1_000_000, 5_000

ENDED = """
    INSERT INTO scheduled_tasks (task_type, run_at, status, started_at, finished_at, updated_at)
    SELECT 'noop', now(), 'completed', now(), moment, moment
    FROM (SELECT date_bin('1 day', now(), '2001-01-01Z') - interval '3 days' AS moment) AS day, generate_series(1, %s)
"""
RANGE = """
    DO $$
    DECLARE
        day timestamptz := date_bin('1 day', now(), '2001-01-01Z') - interval '3 days';
    BEGIN
        EXECUTE format('CREATE TABLE scheduled_tasks_ended_old PARTITION OF scheduled_tasks_ended'
                       ' FOR VALUES FROM (%L) TO (%L)', day, day + interval '1 day');
    END $$
"""
SIZE = """
    SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree('scheduled_tasks_ended') WHERE isleaf
"""


class Gone(NamedTuple):
    """What it took to get rid of the rows."""

    seconds: float
    left_mb: float


def retention(bench: Bench) -> list[Result]:
    """Drop a range, then delete rows, each in a schema of its own."""
    dropped = int(bench.params.get("tasks", QUICK_DROPPED if bench.quick else DROPPED))
    deleted = min(dropped, QUICK_DELETED if bench.quick else DELETED)
    in_range = _measure(bench, dropped, _drop, RANGE)
    in_rest = _measure(bench, deleted, _delete, None)
    each = in_range.seconds / dropped, in_rest.seconds / deleted
    return [
        Result("dropped_tasks", dropped, ""),
        Result("drop_s", in_range.seconds, "s"),
        Result("drop_left_mb", in_range.left_mb, "MB"),
        Result("deleted_tasks", deleted, ""),
        Result("delete_s", in_rest.seconds, "s"),
        Result("delete_tasks_per_s", 1 / each[1], "1/s"),
        Result("delete_left_mb", in_rest.left_mb, "MB"),
        Result("delete_to_drop", each[1] / each[0], ""),
    ]


def _measure(bench: Bench, rows: int, how: Callable[[Store, int], Awaitable[float]], before: str | None) -> Gone:
    with bench.server.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        if before is not None:
            connection.execute(before.encode())
        fill(connection, ENDED, rows, bench.progress)
        quiet(connection)
        bench.progress(f"{rows:,} rows go")
        seconds = asyncio.run(_timed(dsn, rows, how))
        (left,) = connection.execute(SIZE).fetchone() or (0,)
        (count,) = connection.execute("SELECT count(*) FROM scheduled_tasks").fetchone() or (None,)
        if count != 0:
            raise RuntimeError(f"{count} tasks are left")
        return Gone(seconds, left / 2**20)


async def _timed(dsn: str, rows: int, how: Callable[[Store, int], Awaitable[float]]) -> float:
    store = Store(dsn, db_timeout=60.0)
    await store.open()
    await store.depth()
    seconds = await how(store, rows)
    await store.close()
    return seconds


async def _drop(store: Store, rows: int) -> float:
    """The seconds of the call that drops it: one that finds autovacuum at the table that was just filled leaves it."""
    found = None
    while found is None:
        began = time.monotonic()
        found = await store.drop_range(DAY)
    seconds = time.monotonic() - began
    if found[1] > 2 * rows:
        raise RuntimeError(f"about {found[1]} tasks were dropped, of {rows}")
    return seconds


async def _delete(store: Store, rows: int) -> float:
    began = time.monotonic()
    gone, begin = 0, None
    while gone < rows:
        count, begin = await store.prune(DAY, BATCH, begin)
        gone += count
    return time.monotonic() - began
