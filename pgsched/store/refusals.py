"""Turns what PostgreSQL refuses into the one line that a user gets, and tries again what only met a conflict.

Runs wherever the store runs, in the parent, in the command line, or in a program that enqueues. It decides nothing
about connections: ``connection`` does.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import psycopg

from pgsched.errors import DatabaseError, PgschedError, SchemaError, UsageError
from pgsched.store.line import ATTEMPTS, CONFLICTS, pause
from pgsched.store.redaction import one_line

RIGHTS: Final = "`pgsched check` lists the rights that are missing"
T = TypeVar("T")


@contextmanager
def refusals(doing: str, *, unless: tuple[type[psycopg.Error], ...] = (), rights: str = RIGHTS) -> Iterator[None]:
    """Turn any psycopg error inside into a `PgschedError` that begins with what was being done.

    :param doing: such as "cannot enqueue".
    :param unless: errors that leave as they are.
    :param rights: what to do about a right that is missing.
    """
    try:
        yield
    except unless:
        raise
    except psycopg.Error as error:
        raise refusal(error, doing, rights) from error


def refusal(error: psycopg.Error, doing: str, rights: str = RIGHTS) -> PgschedError:
    """The error for the user: one line, with the cure where we know it."""
    line = f"{doing}: {_said(error)}"
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
            return DatabaseError(f"{line}; {rights}")
        case psycopg.errors.ReadOnlySqlTransaction():
            return DatabaseError(f"{line}; the server is a standby or read-only, connect to the primary")
        case psycopg.DataError() | psycopg.IntegrityError():
            return UsageError(line)
    return DatabaseError(line)


def retried(body: Callable[[], T], conflicts: tuple[type[psycopg.Error], ...] = CONFLICTS) -> T:
    """Run one transaction, and once more whenever it met a conflict; the last attempt's is raised."""
    for _ in range(ATTEMPTS - 1):
        try:
            return body()
        except conflicts:
            time.sleep(pause())
    return body()


def _said(error: psycopg.Error) -> str:
    """The server's message and detail; the driver's own text when the server said nothing."""
    said = error.diag.message_primary or str(error) or type(error).__name__
    detail = error.diag.message_detail
    return one_line(f"{said} ({detail})" if detail else said)
