"""What really ran: task functions of tests sign in to a table, on a connection outside of pgsched's transactions.

"Executed once" in a test means one row here. :func:`entry` runs in the worker processes, :class:`Audit` in the test.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from tests.support import Server

VARIABLE = "PGSCHED_TEST_AUDIT"

TABLE = """
    CREATE TABLE audit (
        entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        task_id bigint NOT NULL,
        attempt integer NOT NULL,
        pid integer NOT NULL,
        parent integer NOT NULL,
        started timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz
    )
"""


class Entry(NamedTuple):
    """One execution of a task function. Times in seconds since the epoch, by the database's clock."""

    task_id: int
    attempt: int
    pid: int
    parent: int
    """The supervisor's pid."""
    started: float
    ended: float | None
    """None: it runs, or did not come to its end."""


class Audit:
    """The table of one test's database."""

    def __init__(self, server: Server, dsn: str) -> None:
        self._server = server
        self._dsn = dsn
        server.sql(TABLE, dsn=dsn)

    def entries(self, task_id: int | None = None) -> list[Entry]:
        """Executions in the order of their start."""
        rows = self._server.sql(
            "SELECT task_id, attempt, pid, parent, extract(epoch FROM started)::float8,"
            " extract(epoch FROM ended)::float8 FROM audit WHERE %s::bigint IS NULL OR task_id = %s ORDER BY entry",
            task_id,
            task_id,
            dsn=self._dsn,
        )
        return [Entry(*row) for row in rows]

    def executions(self) -> dict[int, int]:
        """How often each task was started."""
        return dict(self._server.sql("SELECT task_id, count(*) FROM audit GROUP BY task_id", dsn=self._dsn))


@contextmanager
def entry() -> Iterator[None]:
    """Sign in, and sign out at the end: for use around the body of a task function."""
    from pgsched import current_task

    task = current_task()
    with psycopg.connect(os.environ[VARIABLE], autocommit=True, application_name="tests") as connection:
        (number,) = connection.execute(
            "INSERT INTO audit (task_id, attempt, pid, parent) VALUES (%s, %s, %s, %s) RETURNING entry",
            (task.id, task.attempt, os.getpid(), os.getppid()),
        ).fetchone() or (0,)
    yield
    with psycopg.connect(os.environ[VARIABLE], autocommit=True, application_name="tests") as connection:
        connection.execute("UPDATE audit SET ended = clock_timestamp() WHERE entry = %s", (number,))
