"""Drain: N no-op tasks are queued; how long do the workers of one supervisor take until all are completed?

Beside it, in the same run, the floor: the same claim and settle statements on one connection, nothing executed.
Steady state is counted from the first completed task to the last, so start-up is apart.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.results import Result
from pgsched.model import Identity, Outcome, OutcomeKind, Retry, Want
from pgsched.rules.verdict import decide
from pgsched.store.store import Store

BATCH = 500
NOTHING_TO_RETRY = Retry(max=0)


def drain(dsn: str, *, tasks: int, processes: int) -> list[Result]:
    """Measure one drain and one floor on a database that holds our schema and nothing else."""
    floor = asyncio.run(_floor(dsn, tasks))
    _queue(dsn, tasks)
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = _counters(connection)
        with _supervisor(dsn, processes) as supervisor:
            started = time.monotonic()
            first = _wait(connection, 1, supervisor)
            done = _wait(connection, tasks, supervisor)
        after = _counters(connection)
        span = connection.execute(
            "SELECT date_part('epoch', max(finished_at) - min(finished_at)) FROM scheduled_tasks"
        ).fetchone()
    seconds = float(span[0]) if span else done - first
    rate = tasks / seconds
    return [
        Result("tasks_per_s", rate, "1/s"),
        Result("floor_tasks_per_s", floor, "1/s"),
        Result("ratio_to_floor", rate / floor, ""),
        Result("commits_per_task", (after[0] - before[0]) / tasks, ""),
        Result("wal_bytes_per_task", (after[1] - before[1]) / tasks, "B"),
        Result("first_completed_s", first - started, "s"),
    ]


def _queue(dsn: str, tasks: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE scheduled_tasks")
        connection.execute(
            "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'noop', now() FROM generate_series(1, %s)", [tasks]
        )


async def _floor(dsn: str, tasks: int) -> float:
    _queue(dsn, tasks)
    store = Store(dsn)
    await store.open()
    identity = Identity(host="floor", boot_id="floor", pid_namespace=0, pid=os.getpid(), started_ticks=0, processes=1)
    supervisor = await store.register(identity, 120.0)
    outcome = Outcome(OutcomeKind.RETURNED, 0.0)
    want = [Want("noop", "default", 0, BATCH)]
    started = time.monotonic()
    answer = await store.exchange(supervisor, [], want, BATCH)
    settled = 0
    while answer.claims:
        verdicts = [decide(claim, outcome, NOTHING_TO_RETRY, float) for claim in answer.claims]
        settled += len(verdicts)
        answer = await store.exchange(supervisor, [v for v in verdicts if v], want, BATCH)
    seconds = time.monotonic() - started
    await store.deregister(supervisor)
    await store.close()
    if settled != tasks:
        raise RuntimeError(f"the floor settled {settled} of {tasks} tasks")
    return tasks / seconds


@contextmanager
def _supervisor(dsn: str, processes: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pgsched", "run", "benchmarks.tasks:app", "--processes", str(processes)]
    environment = {**os.environ, "PGSCHED_DSN": dsn, "PGSCHED_METRICS_ADDRESS": "127.0.0.1:0"}
    process = subprocess.Popen(
        command, env=environment, stderr=sys.stderr if os.environ.get("PGSCHED_BENCH_LOG") else subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _wait(connection: psycopg.Connection, completed: int, supervisor: subprocess.Popen[bytes]) -> float:
    while supervisor.poll() is None:
        row = connection.execute(
            "SELECT count(*) FROM (SELECT FROM scheduled_tasks_ended WHERE status = 'completed' LIMIT %s) AS ended",
            [completed],
        ).fetchone()
        if row and row[0] >= completed:
            return time.monotonic()
        time.sleep(0.05)
    raise RuntimeError(f"the supervisor ended with exit code {supervisor.returncode}")


def _counters(connection: psycopg.Connection) -> tuple[int, int]:
    row = connection.execute(
        "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
