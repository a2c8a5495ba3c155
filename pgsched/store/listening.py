"""The listening connection: hints as they come, until it is lost. Runs in the supervisor's loop.

A hint is handed on by the callback that reads it, because a task is waiting for it. What it sends goes over the same
connection: the server process that has told of it is awake, and another one would have to be woken. A connection that
only waits does not notice that the other end is gone, so it is asked.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import psycopg

from pgsched.errors import DatabaseError
from pgsched.store.line import Line
from pgsched.store.redaction import one_line

SILENCE: Final = 15.0
"""Seconds after which the connection is asked whether it is still there."""


class Hint(NamedTuple):
    """What somebody told all supervisors."""

    payload: str
    sender: int
    """Server process of the connection that it came from."""


async def listen(line: Line, *, on_ready: Callable[[], None], on_hint: Callable[[Hint], None]) -> None:
    """Subscribe, and hand on hints until the connection is lost.

    :param line: for nothing else but the claims that hints send.
    :param on_ready: called once, when no later hint can be missed.
    :raises DatabaseError: it is lost.
    """
    try:
        lost = await line.hear(("listen", ()), lambda payload, sender: on_hint(Hint(payload, sender)))
        on_ready()
        while True:
            await asyncio.wait({lost}, timeout=SILENCE)
            if lost.done():
                lost.result()
            if not line.engaged:
                await line.run(("ping", ()))
    except (psycopg.Error, OSError) as error:
        raise DatabaseError(f"the listening connection is lost: {one_line(error)}") from None
    finally:
        await line.close()
