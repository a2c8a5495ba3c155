"""The listening connection: hints as they come, until it is lost. Runs in the supervisor's loop.

A connection that only waits does not notice that the other end is gone; so it is asked whenever it was silent for long.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import psycopg

from pgsched.errors import DatabaseError
from pgsched.store.connection import Connection, connect, deadline
from pgsched.store.redaction import one_line
from pgsched.store.sql import load

SILENCE: Final = 15.0
"""Seconds after which the connection is asked whether it is still there."""


class Hint(NamedTuple):
    """What somebody told all supervisors."""

    payload: str
    sender: int
    """Server process of the connection that it came from."""


@asynccontextmanager
async def listen(dsn: str, *, timeout: float) -> AsyncIterator[AsyncIterator[Hint]]:
    """Subscribe, and iterate over hints until the connection is lost.

    :param timeout: seconds to connect, and for each answer.
    :raises DatabaseError: it is lost.
    """
    connection = await connect(dsn, timeout=timeout, application_name="pgsched listen")
    try:
        await deadline(connection, connection.execute(load("listen")), timeout)
        yield _hints(connection, timeout)
    except (psycopg.Error, OSError) as error:
        raise DatabaseError(f"the listening connection is lost: {one_line(error)}") from None
    finally:
        await connection.close()


async def _hints(connection: Connection, timeout: float) -> AsyncIterator[Hint]:
    while True:
        async for hint in connection.notifies(timeout=SILENCE):
            yield Hint(hint.payload, hint.pid)
        await deadline(connection, connection.execute(load("ping")), timeout)
