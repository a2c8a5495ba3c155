"""Turns what PostgreSQL refuses into the one line that a user gets, and tries again what only collided.

Runs wherever the store runs, in the parent, in the command line, or in a program that enqueues. It decides nothing
about connections: ``connection`` does.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import psycopg

from pgsched.errors import DatabaseError, PgschedError, SchemaError, UsageError

T = TypeVar("T")

COLLISIONS = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""40001 (also: the row has moved to the other partition) and 40P01: the same statement again will do."""
_ATTEMPTS = 20


@contextmanager
def refusals(doing: str, *, unless: tuple[type[psycopg.Error], ...] = ()) -> Iterator[None]:
    """Turn any psycopg error inside into a `PgschedError` that begins with what was being done.

    :param doing: such as "cannot enqueue".
    :param unless: errors that leave as they are.
    """
    try:
        yield
    except unless:
        raise
    except psycopg.Error as error:
        raise refusal(error, doing) from error


def refusal(error: psycopg.Error, doing: str) -> PgschedError:
    """The error for the user: one line, with the cure where we know it."""
    line = f"{doing}: {_one_line(error)}"
    match error:
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn() | psycopg.errors.UndefinedFunction():
            return SchemaError(f"{line}; run `pgsched migrate`")
        case (
            psycopg.errors.DuplicateTable()
            | psycopg.errors.DuplicateObject()
            | psycopg.errors.DuplicateFunction()
            | psycopg.errors.DependentObjectsStillExist()
        ):
            return SchemaError(f"{line}; nothing was changed")
        case psycopg.errors.InsufficientPrivilege():
            return DatabaseError(f"{line}; `pgsched check` lists the rights that are missing")
        case psycopg.errors.ReadOnlySqlTransaction():
            return DatabaseError(f"{line}; the server is a standby or read-only, connect to the primary")
        case psycopg.DataError() | psycopg.IntegrityError():
            return UsageError(line)
    return DatabaseError(line)


def again(body: Callable[[], T]) -> T:
    """Run one transaction, and once more whenever it collided with another one."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return body()
        except COLLISIONS:
            time.sleep(_pause(attempt))
    return body()


async def again_async(body: Callable[[], Awaitable[T]]) -> T:
    """The same for a coroutine function."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return await body()
        except COLLISIONS:
            await asyncio.sleep(_pause(attempt))
    return await body()


def _pause(attempt: int) -> float:
    """Seconds: random, so that the two who met do not meet again."""
    return random.random() * min(0.002 * 2.0**attempt, 0.2)


def _one_line(error: psycopg.Error) -> str:
    """The server's message and detail; the driver's own text when the server said nothing."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    detail = error.diag.message_detail
    return " ".join(f"{said} ({detail})".split() if detail else said.split())
