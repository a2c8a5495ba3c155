"""Memory: what a supervisor with 16 slots needs beside a million queued rows, and what each of its workers adds.

A worker is forked from a process that has imported the app, so most of its pages are shared; what counts is what nobody
else has (the kernel's "private" pages). Linux only, on this host.
"""

import statistics

import psycopg

from benchmarks.ended import wait_for_task
from benchmarks.filling import fill, queue_noops
from benchmarks.processes import pages, unique
from benchmarks.scenario import Bench, Result
from benchmarks.supervisors import supervisor

SLOTS = 16
ROWS = 1_000_000
ENDED = 100_000
"""Tasks that have run before memory is read."""
MIB = 1024 * 1024
QUEUED = "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'noop', now() FROM generate_series(1, %s)"


def memory(bench: Bench) -> list[Result]:
    """Measure while it drains."""
    rows, ended = (10_000, 2_000) if bench.quick else (ROWS, ENDED)
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        first = queue_noops(connection, ended)
        fill(connection, QUEUED, rows, bench.progress)
        with supervisor(bench.dsn, SLOTS) as running:
            wait_for_task(connection, first + ended - 1, [running])
            parent = pages(running.pid)
            workers = [pages(pid) for pid in running.workers()]
            # What is left need not be drained.
            connection.execute("DELETE FROM scheduled_tasks WHERE status = 'queued'")
    return [
        Result("parent_mb", parent["Rss"] / MIB, "MiB"),
        Result("worker_mb", statistics.median(each["Rss"] for each in workers) / MIB, "MiB"),
        Result("worker_unique_mb", statistics.median(unique(each) for each in workers) / MIB, "MiB"),
        Result("workers", len(workers), ""),
    ]
