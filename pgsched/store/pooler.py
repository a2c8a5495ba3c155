"""Whether a connection pooler such as PgBouncer stands before the server.

One that pools transactions gives each of them another session, so that what was prepared in one is missed, or met, in
the next. Runs in commands, and in any program that enqueues.
"""

from typing import Any

import psycopg

from pgsched.store.refusals import refusals
from pgsched.store.statements import rows


def is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Ask the server: a pooler greets its clients with a process id of its own making.

    :raises DatabaseError: the connection is lost.
    """
    with refusals("cannot ask the database"):
        return bool(rows(conn, "backend")[0][0] != conn.info.backend_pid)
