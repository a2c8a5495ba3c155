"""Drain: tasks that do nothing are queued; how long do the workers of one supervisor take until all are completed?

Beside it, in the same run, the floor: the same claims and settles on one connection, nothing executed. Rates are
counted from the first moment at which tasks were completed to the last, processor time from the supervisor's
registration; the way there is told apart.
"""

import asyncio
import os
import time
from typing import NamedTuple

import psycopg

from benchmarks.ended import rate, settled, wait_for_all, wait_for_task
from benchmarks.filling import queue_noops
from benchmarks.scenario import Bench, Result
from benchmarks.supervisors import Supervisor, supervisor
from pgsched.model import Identity, Outcome, OutcomeKind, Retry, Want
from pgsched.rules.demand import LIMITS
from pgsched.rules.verdict import decide
from pgsched.store.store import Store

BATCH = LIMITS.batch
LEASE = 3600.0
NO_RETRY = Retry(max=0)


class Used(NamedTuple):
    """Processor time up to now, in seconds."""

    postgres: float | None
    supervisor: float
    workers: float


def drain(bench: Bench) -> list[Result]:
    """Measure one floor and one drain, each in a schema of its own."""
    tasks = int(bench.params.get("tasks", 2_000 if bench.quick else 50_000))
    bench.progress(f"the floor: {tasks} tasks")
    with bench.server.fresh() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            queue_noops(connection, tasks)
        floor = asyncio.run(_floor(dsn, tasks))
    bench.progress(f"the drain: {tasks} tasks")
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        first_id = queue_noops(connection, tasks)
    counted = bench.server.counters()
    begin = time.monotonic()
    with psycopg.connect(bench.dsn) as connection, supervisor(bench.dsn, bench.processes) as running:
        before = _used(bench, running)
        # In one transaction, which is one commit, because commits are counted. It keeps no snapshot between two looks.
        wait_for_task(connection, first_id, [running])
        first_completed = time.monotonic() - begin
        wait_for_task(connection, first_id + tasks - 1, [running])
        wait_for_all(connection, tasks, [running])
        after = _used(bench, running)
        reached = rate(settled(connection))
    recounted = bench.server.counters()
    return [
        Result("tasks_per_s", reached, "1/s"),
        Result("floor_tasks_per_s", floor, "1/s"),
        Result("ratio_to_floor", reached / floor if reached else None, ""),
        Result("commits_per_task", (recounted.commits - counted.commits) / tasks, ""),
        Result("wal_bytes_per_task", (recounted.wal_bytes - counted.wal_bytes) / tasks, "B"),
        Result("postgres_cpu_us_per_task", _microseconds(before.postgres, after.postgres, tasks), "us"),
        Result("supervisor_cpu_us_per_task", _microseconds(before.supervisor, after.supervisor, tasks), "us"),
        Result("worker_cpu_us_per_task", _microseconds(before.workers, after.workers, tasks), "us"),
        Result("first_completed_s", first_completed, "s"),
    ]


def _used(bench: Bench, running: Supervisor) -> Used:
    return Used(bench.server.cpu_seconds(), running.cpu_seconds(), running.workers_cpu_seconds())


def _microseconds(before: float | None, after: float | None, tasks: int) -> float | None:
    return None if before is None or after is None else (after - before) / tasks * 1e6


async def _floor(dsn: str, tasks: int) -> float:
    """Claim and settle all there is as a supervisor would whose workers take no time; tasks a second."""
    store = Store(dsn)
    await store.open()
    identity = Identity(host="floor", boot_id="floor", pid_namespace=0, pid=os.getpid(), started_ticks=0, processes=1)
    claimer = await store.register(identity, LEASE)
    outcome = Outcome(OutcomeKind.RETURNED, 0.0)
    settled_tasks = 0
    began = time.monotonic()
    answer = await store.exchange(claimer, [], [Want("noop", "default", 0, BATCH)], BATCH)
    while answer.claims:
        verdicts = [verdict for claim in answer.claims if (verdict := decide(claim, outcome, NO_RETRY, float))]
        last = answer.claims[-1]
        # The next scan starts where this one ended, as a supervisor's does.
        want = Want(last.task_type, last.queue, last.priority, BATCH, last.run_at, last.task_id)
        answer = await store.exchange(claimer, verdicts, [want], BATCH)
        settled_tasks += sum(answer.settled)
    seconds = time.monotonic() - began
    await store.deregister(claimer)
    await store.close()
    if settled_tasks != tasks:
        raise RuntimeError(f"the floor settled {settled_tasks} of {tasks} tasks")
    return tasks / seconds
