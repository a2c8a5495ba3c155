"""The listening connection: hints as they come, until it is lost. Runs in the supervisor's loop.

A hint is handed on by the callback that reads it, because a task is waiting for it; the driver's own iterator takes a
few more turns of the loop. A connection that only waits does not notice that the other end is gone, so it is asked.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg
from psycopg import pq

from pgsched.errors import DatabaseError
from pgsched.store.connection import connect, deadline, turned_read_only
from pgsched.store.redaction import one_line
from pgsched.store.sql import load

SILENCE: Final = 15.0
"""Seconds after which the connection is asked whether it is still there."""


class Hint(NamedTuple):
    """What somebody told all supervisors."""

    payload: str
    sender: int
    """Server process of the connection that it came from."""


async def listen(dsn: str, *, timeout: float, on_ready: Callable[[], None], on_hint: Callable[[Hint], None]) -> None:
    """Subscribe, and hand on hints until the connection is lost.

    :param timeout: seconds to connect, and for each answer.
    :param on_ready: called once, when no later hint can be missed.
    :raises DatabaseError: it is lost.
    """
    connection = await connect(dsn, timeout=timeout, application_name="pgsched listen")
    # What comes while an answer is read goes through the driver.
    connection.add_notify_handler(lambda notify: on_hint(Hint(notify.payload, notify.pid)))
    try:
        for statement in ("session", "listen"):
            await deadline(connection, connection.execute(load(statement)), timeout)
        on_ready()
        while True:
            await _hear(connection.pgconn, on_hint, SILENCE)
            await deadline(connection, connection.execute(load("ping")), timeout)
            if turned_read_only(connection):
                raise DatabaseError("the listening connection is to a server that has turned read-only")
    except (psycopg.Error, OSError) as error:
        raise DatabaseError(f"the listening connection is lost: {one_line(error)}") from None
    finally:
        await connection.close()


async def _hear(pgconn: pq.abc.PGconn, on_hint: Callable[[Hint], None], seconds: float) -> None:
    """Hand on hints for so long."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()
    # The end of a tenure may come in the same moment, and then nobody asks what it was lost by.
    lost.add_done_callback(lambda future: future.exception())

    def receive() -> None:
        try:
            pgconn.consume_input()
            while notify := pgconn.notifies():
                on_hint(Hint(notify.extra.decode(), notify.be_pid))
        except Exception as error:
            loop.remove_reader(socket)
            lost.set_exception(error)

    socket = pgconn.socket
    loop.add_reader(socket, receive)
    try:
        await asyncio.wait({lost}, timeout=seconds)
    finally:
        loop.remove_reader(socket)
    if lost.done():
        lost.result()
