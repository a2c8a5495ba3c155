"""``multiprocessing.Pool`` on the tasks of ``cpu``: by itself, and as the simplest queue that loses nothing.

In the second its tasks are rows of a table: a claim and a settle in one durable round trip whenever tasks have ended,
after the longest time that a supervisor lets verdicts gather, and no lease, fence, limit, metric or second host. What
that costs beside the Pool alone is what the server and the disk ask of anybody. Nothing of pgsched is used but the
function of its task ``burn``.
"""

import multiprocessing
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.pool import Pool
from pathlib import Path
from queue import Empty, SimpleQueue

import psycopg

from benchmarks import burning
from benchmarks.bare import TABLE
from benchmarks.tasks import burn

GATHER = 0.02
"""Seconds; a supervisor's ``LONGEST_GATHER``."""
IN_HAND = 3
"""Claimed tasks for each worker, so that none waits for the next claim."""

QUEUE = """
    INSERT INTO bare_tasks (payload, run_at)
    SELECT jsonb_build_object('loops', task.loops, 'path', %s::text, 'number', task.number), now()
    FROM unnest(%s::integer[]) WITH ORDINALITY AS task (loops, number)
    ORDER BY task.number
"""
TURN = """
    WITH settled AS (
        UPDATE bare_tasks SET status = 'completed' WHERE id = ANY (%s::bigint[]) AND status = 'processing'),
    due AS (
        SELECT id FROM bare_tasks WHERE status = 'queued' AND run_at <= now() ORDER BY run_at, id LIMIT %s
        FOR UPDATE SKIP LOCKED)
    UPDATE bare_tasks AS task SET status = 'processing', fence = task.fence + 1
    FROM due WHERE task.id = due.id
    RETURNING task.id, (payload ->> 'loops')::integer, payload ->> 'path', (payload ->> 'number')::integer
"""


def bare(processes: int, loops: Sequence[int], path: Path) -> list[burning.Burned]:
    """Run one task for each number of loops in a Pool."""
    with _pool(processes) as pool:
        pool.starmap(_burn, [(each, str(path), number) for number, each in enumerate(loops)], chunksize=1)
    return burning.burned(path)


def durable(dsn: str, processes: int, loops: Sequence[int], path: Path) -> list[burning.Burned]:
    """The same as rows, which are claimed and settled."""
    ended: SimpleQueue[int | BaseException] = SimpleQueue()
    with psycopg.connect(dsn, autocommit=True) as connection, _pool(processes) as pool:
        connection.execute("DROP TABLE IF EXISTS bare_tasks")
        connection.execute(TABLE)
        connection.execute(QUEUE, [str(path), list(loops)])
        in_hand, done = 0, list[int]()
        while True:
            claimed = connection.execute(TURN, [done, IN_HAND * processes - in_hand], prepare=True).fetchall()
            for row in claimed:
                pool.apply_async(_burn_row, row, callback=ended.put, error_callback=ended.put)
            in_hand += len(claimed)
            if not in_hand:
                return burning.burned(path)
            done = _gather(ended)
            in_hand -= len(done)


def _gather(ended: SimpleQueue[int | BaseException]) -> list[int]:
    """What has ended: one task, and what follows it soon.

    :raises Empty: nothing ends any more; a worker was killed.
    """
    done = [_ended(ended, burning.LATE)]
    until = time.monotonic() + GATHER
    with suppress(Empty):
        while (left := until - time.monotonic()) > 0:
            done.append(_ended(ended, left))
    return done


def _ended(ended: SimpleQueue[int | BaseException], seconds: float) -> int:
    found = ended.get(timeout=seconds)
    if isinstance(found, BaseException):
        raise found
    return found


def _pool(processes: int) -> Pool:
    # A fork of this process would take its memory and its descriptors along; the tasks run alike.
    context = multiprocessing.get_context("forkserver")
    return context.Pool(processes, _wait_for_all, (context.Barrier(processes),))


def _wait_for_all(workers: threading.Barrier) -> None:
    """Take no task before every worker is up."""
    workers.wait(60)


def _burn(loops: int, path: str, number: int) -> None:
    """The function behind the task type: a Pool needs one that it can name."""
    burn.function(loops, path, number)


def _burn_row(task_id: int, loops: int, path: str, number: int) -> int:
    _burn(loops, path, number)
    return task_id
