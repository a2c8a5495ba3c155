"""What tasks have returned, for a program that has enqueued many and waits for all. Reads only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row

from pgsched.store.refusals import refusals
from pgsched.store.sql import load


class Result(NamedTuple):
    """How a task stands."""

    id: int
    status: str
    payload: str
    """JSON text."""
    result: str | None
    """JSON text; None while there is none."""
    error: str | None


def results(conn: psycopg.Connection[Any], ids: Sequence[int]) -> list[Result]:
    """How these tasks stand, by id; those that are gone are left out.

    :raises DatabaseError, SchemaError: it cannot be read.
    """
    with refusals("cannot read results"), psycopg.RawCursor(conn, row_factory=class_row(Result)) as cursor:
        return cursor.execute(load("list_results"), (list(ids),)).fetchall()
