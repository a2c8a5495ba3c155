"""Runs one of our statements over a sync connection; `Store` has its own way for the supervisor.

Parameters are PostgreSQL's own ($1, $2, ...), so a file in ``sql/`` can be tried in psql as it is.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import psycopg
from psycopg.rows import RowFactory, tuple_row

from pgsched.store.sql import load

Row = TypeVar("Row")


def rows(conn: psycopg.Connection[Any], name: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of ``sql/NAME.sql``, whatever rows the connection makes for its owner; none if it returns none."""
    return made(conn, tuple_row, name, *parameters)


def values(conn: psycopg.Connection[Any], name: str, *parameters: object) -> list[Any]:
    """The first column of each row."""
    return [row[0] for row in rows(conn, name, *parameters)]


def made(conn: psycopg.Connection[Any], factory: RowFactory[Row], name: str, *parameters: object) -> list[Row]:
    """The rows as ``factory`` makes them, such as ``class_row(Supervisor)``."""
    with psycopg.RawCursor(conn, row_factory=factory) as cursor:
        with _answered(conn):
            cursor.execute(load(name), parameters or None)
        return cursor.fetchall() if cursor.description else []


def run(conn: psycopg.Connection[Any], name: str, *parameters: object) -> int:
    """How many rows the statement changed."""
    with psycopg.RawCursor(conn) as cursor:
        with _answered(conn):
            cursor.execute(load(name), parameters or None)
        return cursor.rowcount


def _answered(conn: psycopg.Connection[Any]) -> AbstractContextManager[object]:
    """A block at whose end the answer is there, also where the connection's owner has begun a pipeline."""
    return conn.pipeline() if conn.pgconn.pipeline_status else nullcontext()
