"""An old snapshot, as a report that runs for hours holds one, or a session that was forgotten: while it lives, nothing
that was deleted since can be removed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import IsolationLevel

from benchmarks.server import APPLICATION

READ = "SELECT count(*) FROM pgsched_supervisors"


@contextmanager
def old_snapshot(dsn: str) -> Iterator[None]:
    """Hold a snapshot from before everything that the body does, in a session that is idle.

    :raises RuntimeError: the session has ended meanwhile, so the body ran without it for a while.
    """
    with psycopg.connect(dsn, application_name=APPLICATION) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.commit()
        connection.execute(READ)
        yield
        try:
            connection.execute(READ)
        except psycopg.Error as error:
            raise RuntimeError(f"the old snapshot was lost: {error}") from None
