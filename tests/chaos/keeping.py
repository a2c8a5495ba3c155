"""What the terms of a storm demand: bound supervisors claim their own, and pruning takes what is old and nothing else.

The checks are pure, like :mod:`tests.chaos.ledger`. Besides, here is what makes old ranges for the supervisors to drop.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from tests.chaos.ledger import Book, FailureRow, Violation, Way

AGED = "aged"
"""The queue of tasks that ended long before the storm, of which the ledger knows nothing."""
EARLY = 2.5
"""Seconds by which an end may be dated before it was written down: a transaction takes no longer."""
OLD_RANGE = """
    SELECT (day - %(days)s * interval '1 day')::text, (day - (%(days)s - 1) * interval '1 day')::text
    FROM date_bin('1 day', now() - interval '10 days', '2001-01-01Z') AS day
"""
OLD_TASKS = """
    INSERT INTO scheduled_tasks (task_type, queue, run_at, status, finished_at)
    SELECT 'noop', %s, %s, 'completed', %s::timestamptz + interval '1 hour' FROM generate_series(1, 20)
"""
OLD_RANGES = "SELECT count(*) FROM pgsched_ranges() WHERE upper < now() - interval '1 day'"


def add_old_range(connection: psycopg.Connection[Any], number: int) -> None:
    """Make a range of a day that is over long since, with tasks in it; the higher the number the older."""
    row = connection.execute(OLD_RANGE, {"days": number}).fetchone()
    assert row is not None
    first, last = row
    with connection.transaction():
        # Settles wait behind whoever waits for this lock.
        connection.execute("SET LOCAL lock_timeout = '100ms'")
        bounds = f"FOR VALUES FROM ('{first}') TO ('{last}')"
        connection.execute(
            f"CREATE TABLE scheduled_tasks_ended_old_{number} PARTITION OF scheduled_tasks_ended {bounds}".encode()
        )
        connection.execute(OLD_TASKS, [AGED, first, first])


def check_terms(book: Book, found: Mapping[int, Way]) -> Iterator[Violation]:
    """Everything that is said above."""
    yield from _check_bound(book, found)
    failures: defaultdict[int, list[FailureRow]] = defaultdict(list)
    for failure in book.failures:
        failures[failure.task_id].append(failure)
    for row in book.rows:
        way = found.get(row.task_id)
        if way is None:
            continue
        if row.present != (way.pruned_at is None):
            yield Violation("lost task", row.task_id, f"pruned at {way.pruned_at}, and there: {row.present}")
        for failure in failures[row.task_id]:
            if failure.present != row.present:
                yield Violation("failure record", row.task_id, f"there: {failure.present}, the task {row.present}")
        if way.pruned_at is not None and way.ended_at is not None:
            age = way.pruned_at - way.ended_at
            if book.kept is None or age < book.kept - EARLY:
                yield Violation("pruned too early", row.task_id, f"{age:.1f} s after its end, kept for {book.kept}")


def _check_bound(book: Book, found: Mapping[int, Way]) -> Iterator[Violation]:
    pids = {tenure.supervisor: tenure.pid for tenure in book.tenures}
    partitions = {row.task_id: row.partition for row in book.rows}
    for task_id, way in found.items():
        for stint in way.stints:
            seat = book.seats.get(pids.get(stint.owner, 0), -1)
            bound = book.bound.get(seat, ())
            if bound and partitions.get(task_id) not in bound:
                text = f"of partition {partitions.get(task_id)}, by seat {seat}, which is bound to {bound}: {stint}"
                yield Violation("claimed from another's partition", task_id, text)
