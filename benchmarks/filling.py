"""Filling the table before a measurement, and letting the server come to rest after it."""

import contextlib
from collections.abc import Callable, Sequence

import psycopg
from psycopg import errors

CHUNK = 500_000
"""Rows of one INSERT."""

NOOPS = """
    INSERT INTO scheduled_tasks (task_type, run_at, queue)
    SELECT 'noop', now(), queues.names[1 + number %% cardinality(queues.names)]
    FROM generate_series(1, %s) AS number, (SELECT %s::text[]) AS queues (names)
"""


def queue_noops(connection: psycopg.Connection, tasks: int, queues: Sequence[str] = ("default",)) -> int:
    """Queue so many tasks that do nothing with one INSERT, all due now, in an empty table; return the first id.

    :param queues: each gets its share.
    """
    connection.execute(NOOPS, [tasks, list(queues)])
    # Not the sequence's last value: it may have been used before.
    row = connection.execute("SELECT min(id) FROM scheduled_tasks").fetchone()
    assert row is not None
    return int(row[0])


def fill(connection: psycopg.Connection, insert: str, rows: int, say: Callable[[str], None]) -> None:
    """Insert many rows.

    :param insert: an INSERT with one placeholder for how many.
    :param say: told how far it is.
    """
    for done in range(0, rows, CHUNK):
        say(f"{done:,} of {rows:,} rows")
        connection.execute(insert.encode(), [min(CHUNK, rows - done)])


def quiet(connection: psycopg.Connection) -> None:
    """Have what the filling has left to be written to disk written now, where we may ask for it: it is not part of what
    is measured next."""
    with contextlib.suppress(errors.InsufficientPrivilege):
        connection.execute("CHECKPOINT")
