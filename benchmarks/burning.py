"""Tasks that keep a processor busy in pure Python: queued for a supervisor, and what they noted of their run.

Shared by ``cpu`` and ``mixed``. Each task notes when its first and its last line ran, in the scratch directory.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks.stamps import count, read

WARM_UP = 4
LATE = 600.0

QUEUE = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at)
    SELECT 'burn', jsonb_build_object('loops', task.loops, 'path', %s::text, 'number', task.number), now()
    FROM unnest(%s::integer[]) WITH ORDINALITY AS task (loops, number)
    ORDER BY task.number
"""


class Burned(NamedTuple):
    """One task's run, in seconds of the clock that all processes share."""

    started: float
    ended: float
    cpu: float
    """What it had of a processor meanwhile."""


def warm_up(connection: psycopg.Connection) -> None:
    """Let every worker run something else first, so that its start is not measured, and the supervisor still knows
    nothing of how long the measured tasks take."""
    connection.execute(
        "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'noop', now() FROM generate_series(1, %s)", [WARM_UP]
    )
    _until(lambda: _ended(connection) >= WARM_UP, "the workers did not start")


def queue(connection: psycopg.Connection, loops: Sequence[int], path: Path) -> None:
    """Queue one task for each number of loops, in order, with one INSERT."""
    connection.execute(QUEUE, [str(path), list(loops)])


def wait(path: Path, tasks: int, at_least: float) -> list[Burned]:
    """Wait until so many have ended; return the runs by task.

    :param at_least: seconds that they take in any case, in which nobody looks, because a look takes processor time too.
    """
    time.sleep(at_least)
    _until(lambda: count(path) >= tasks, "the tasks did not end")
    return burned(path)


def burned(path: Path) -> list[Burned]:
    """What has ended so far, in the order in which it was queued.

    :raises RuntimeError: a task ran twice: then the figures would mean nothing.
    """
    lines = sorted(read(path))
    if len({number for number, *_ in lines}) < len(lines):
        raise RuntimeError("a task ran more than once")
    return [Burned(started / 1e9, ended / 1e9, cpu / 1e9) for _, started, ended, cpu in lines]


def span(runs: Sequence[Burned]) -> float:
    """Seconds from the first start to the last end."""
    return max(run.ended for run in runs) - min(run.started for run in runs)


def _ended(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM scheduled_tasks_ended").fetchone()
    return int(row[0]) if row else 0


def _until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + LATE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} within {LATE:g} s")
        time.sleep(0.05)
