"""How fast tasks have ended: rates from the times that stand in the rows, and waiting until all have.

The times are those of the settling transactions, so nobody needs to look while a run goes on. What was settled at the
first moment is left out of every rate: when work on it began is not known.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import psycopg

from benchmarks.supervisors import Supervisor

LOOK_EVERY = 0.01

BY_MOMENT = """
    SELECT date_part('epoch', finished_at), count(*)
    FROM scheduled_tasks_ended
    GROUP BY finished_at
    ORDER BY finished_at
"""


class Settled(NamedTuple):
    """So many tasks ended at one moment."""

    at: float
    """Seconds."""
    tasks: int


def settled(connection: psycopg.Connection) -> list[Settled]:
    """All ended tasks by moment."""
    return [Settled(float(at), int(tasks)) for at, tasks in connection.execute(BY_MOMENT)]


def rate(moments: Sequence[Settled]) -> float | None:
    """Tasks a second from the first moment to the last; None if they are one."""
    rates = slice_rates(moments, 1)
    return rates[0] if rates else None


def slice_rates(moments: Sequence[Settled], slices: int) -> list[float]:
    """Tasks a second in each of so many equal parts of the tasks; empty if all ended at one moment.

    Where a part ends between two moments, tasks are taken to have ended evenly between them.
    """
    counted = sum(moment.tasks for moment in moments[1:])
    if not counted:
        return []
    part = counted / slices
    ends = list(_moments_of([part * number for number in range(slices + 1)], moments))
    return [part / (after - before) for before, after in pairwise(ends)]


def _moments_of(counts: Sequence[float], moments: Sequence[Settled]) -> Iterator[float]:
    """When so many tasks had ended, for each of these ascending counts."""
    reached, place = 0.0, 1
    for count in counts:
        while reached + moments[place].tasks < count and place + 1 < len(moments):
            reached += moments[place].tasks
            place += 1
        before, after = moments[place - 1].at, moments[place].at
        yield before + (after - before) * min((count - reached) / moments[place].tasks, 1.0)


def wait_for_task(connection: psycopg.Connection, task_id: int, supervisors: Sequence[Supervisor]) -> None:
    """Wait until one task has ended, at the price of an index probe a look.

    :raises RuntimeError: a supervisor has ended instead.
    """
    query = "SELECT FROM scheduled_tasks_ended WHERE id = %s"
    while not connection.execute(query, [task_id]).rowcount:
        _demand_alive(supervisors)
        time.sleep(LOOK_EVERY)


def wait_for_all(connection: psycopg.Connection, tasks: int, supervisors: Sequence[Supervisor]) -> None:
    """Wait until so many tasks have ended; to be called when nearly all have, because it counts them.

    :raises RuntimeError: a supervisor has ended instead, or a task did not complete.
    """
    query = "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM scheduled_tasks_ended"
    while True:
        ended, completed = connection.execute(query).fetchone() or (0, 0)
        if ended >= tasks:
            break
        _demand_alive(supervisors)
        time.sleep(10 * LOOK_EVERY)
    if (ended, completed) != (tasks, tasks):
        raise RuntimeError(f"{completed} of {tasks} tasks completed, and {ended} ended")


def _demand_alive(supervisors: Sequence[Supervisor]) -> None:
    for supervisor in supervisors:
        code = supervisor.process.poll()
        if code is not None:
            raise RuntimeError(f"a supervisor ended with exit code {code}")
