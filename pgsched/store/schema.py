"""The schema's version: creates and updates the tables, and tells whether they fit this code.

The schema is the sum of the files in ``migrations/``; ``pgsched_schema`` remembers which were applied. All of a
migration is one transaction under an advisory lock, so it is safe twice, and from two hosts at once. Runs in the
command line; a supervisor only asks `require_async`.
"""

import itertools
import re
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import tuple_row

from pgsched.errors import DatabaseError, SchemaError
from pgsched.store import adopt
from pgsched.store.connection import connect_sync
from pgsched.store.refusals import refusals
from pgsched.store.sql import load
from pgsched.store.statements import rows, run, values

_DIRECTORY: Final = files("pgsched.store") / "migrations"


def _migrations() -> Mapping[int, str]:
    """The names of the migration files by version: 1, 2, ... without a gap."""
    names = sorted(entry.name for entry in _DIRECTORY.iterdir())
    found = {int(match[1]): name for name in names if (match := re.fullmatch(r"(\d{4})_\w+\.sql", name))}
    if list(found) != list(range(1, len(found) + 1)):
        raise SchemaError(f"this installation is broken: its migrations are {', '.join(names)}")
    return found


MIGRATIONS: Final = _migrations()
LATEST: Final = len(MIGRATIONS)
"""The version that this code needs."""
LOCK_WAIT: Final = 0.2
"""Seconds that a migration waits for a table's lock at once, because whoever comes later waits behind it: the renewals
of leases, too."""
LOCK_PATIENCE: Final = 1.5
"""The same for each third time: the server ends an autovacuum that is in the way, once somebody has waited for its
``deadlock_timeout``, a second by default."""
LOCK_PAUSE: Final = 0.5
"""Seconds until it tries again."""


class Found(NamedTuple):
    """What the search_path of a session leads to; schema names are quoted where they must be."""

    current_schema: str | None
    """Where new tables would go; None when no schema of the path exists."""
    versions_in: str | None
    """The schema of ``pgsched_schema``."""
    tasks_in: str | None
    """The schema of ``scheduled_tasks``."""
    tasks_kind: str | None
    """Its ``relkind``: r for a plain table, p for a partitioned one."""
    search_path: str


def migrate(dsn: str, timeout: float = 10.0, partitions: int | None = None) -> list[str]:
    """Create the tables, adopt the article's, or bring them to `LATEST`; in one transaction.

    :param timeout: seconds to connect, and to wait for the lock on a table that is in use. The migration itself has no
        time limit, nor has the wait for another host that migrates just now.
    :param partitions: into how many the live tasks are to be split; None: they stay as they are.
    :return: what was done, as lines for a person.
    :raises SchemaError: the schema is newer than this code, there is a ``scheduled_tasks`` that cannot be adopted, or
        something hangs on the tables that are to be split. Nothing was changed.
    :raises DatabaseError: the server cannot be reached, or refused.
    """
    with (
        connect_sync(dsn, timeout=timeout, application_name="pgsched migrate") as conn,
        refusals("cannot migrate", rights="only the tables' owner may, or who has CREATE on an empty schema"),
    ):
        # A role may have stricter defaults; the second of two hosts must see what the first has done.
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        conn.read_only = False
        give_up = time.monotonic() + timeout
        waits = itertools.cycle((LOCK_WAIT, LOCK_WAIT, LOCK_PATIENCE))
        while True:
            try:
                return _transaction(conn, min(timeout, next(waits)), partitions)
            except psycopg.errors.LockNotAvailable as error:
                if time.monotonic() >= give_up:
                    raise DatabaseError(
                        f"cannot lock the tables within {timeout:g} s: other sessions use them; stop them and try again"
                    ) from error
            time.sleep(LOCK_PAUSE)


def _transaction(conn: psycopg.Connection[Any], lock_wait: float, partitions: int | None) -> list[str]:
    with conn.transaction():
        run(conn, "schema_limits")
        run(conn, "schema_lock")
        lines = _migrate(conn, lock_wait)
        return lines if partitions is None else lines + _split(conn, partitions)


def _migrate(conn: psycopg.Connection[Any], lock_wait: float) -> list[str]:
    found = _find(conn)
    schema = found.versions_in or found.tasks_in or found.current_schema
    if schema is None:
        raise SchemaError(
            f"no schema of search_path {found.search_path} exists: create one, or set another search_path"
        )
    run(conn, "schema_path", schema, str(round(lock_wait * 1000)))
    found = _find(conn)
    old = _version(conn) if found.versions_in else 0
    if old > LATEST:
        raise SchemaError(_newer(old))
    if old == LATEST:
        _demand_tasks(found, old)
        return [f"schema {schema} is up to date (version {LATEST})"]
    adoption = adopt.prepare(conn) if old == 0 and _must_adopt(found) else None
    if not found.versions_in:
        run(conn, "schema_create")
    lines = []
    for version in range(old + 1, LATEST + 1):
        conn.execute(_statements(version))
        run(conn, "schema_applied", version)
        lines.append(f"applied {MIGRATIONS[version]} in schema {schema}")
    return lines + (adopt.finish(conn, adoption) if adoption else [])


def _split(conn: psycopg.Connection[Any], wanted: int) -> list[str]:
    """Split the live tasks into so many partitions, with the rows that there are; 1 is one table."""
    there = max(len(rows(conn, "partitions")), 1)
    if there == wanted:
        return [f"the live tasks are in {_tables(there)} already"]
    adopt.lock(conn)
    if obstacles := values(conn, "split_obstacles"):
        raise SchemaError(
            f"the live tasks cannot be moved while their tables have: {', '.join(obstacles)}; "
            "remove them and create them anew after `pgsched migrate`"
        )
    granted = rows(conn, "split_grants")
    [moved] = values(conn, "schema_split", wanted)
    for number, statement in granted:
        if wanted > 1 and number < wanted:
            conn.execute(statement.encode())
    return [f"moved {moved:,} live tasks from {_tables(there)} to {_tables(wanted)}"]


def _tables(partitions: int) -> str:
    return "one table" if partitions == 1 else f"{partitions} partitions"


def _must_adopt(found: Found) -> bool:
    """Whether there is a plain table to adopt; refuses anything else that bears its name."""
    if found.tasks_kind not in (None, "r"):
        kinds = {"p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}
        raise SchemaError(
            f"{found.tasks_in}.scheduled_tasks is a {kinds.get(str(found.tasks_kind), 'relation')} that pgsched has "
            "not made: rename it, or migrate into another schema by search_path"
        )
    return found.tasks_kind == "r"


def version(conn: psycopg.Connection[Any]) -> int:
    """The version of the schema that the session's search_path leads to; 0 when there is none."""
    with refusals("cannot read the schema's version"):
        return _version(conn) if _find(conn).versions_in else 0


def require(conn: psycopg.Connection[Any]) -> None:
    """Do nothing if the schema fits this code.

    :raises SchemaError: it is missing, older or newer; the message names the command to run.
    """
    with refusals("cannot read the schema's version"):
        found = _find(conn)
        _judge(found, _version(conn) if found.versions_in else 0)


async def require_async(conn: psycopg.AsyncConnection[Any]) -> None:
    """The same as `require`, for a supervisor."""
    with refusals("cannot read the schema's version"):
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(load("schema_find"))
            found = Found(*(await cursor.fetchone() or ()))
            number = 0
            if found.versions_in:
                await cursor.execute(load("schema_version"))
                (number,) = await cursor.fetchone() or (0,)
        _judge(found, number)


def _judge(found: Found, number: int) -> None:
    if number == 0:
        where = f"with search_path {found.search_path}"
        if found.tasks_kind == "r":
            raise SchemaError(f"table scheduled_tasks is not adopted yet {where}: run `pgsched migrate`")
        raise SchemaError(f"there are no pgsched tables {where}: run `pgsched migrate`")
    if number < LATEST:
        raise SchemaError(f"the schema is at version {number}, this pgsched needs {LATEST}: run `pgsched migrate`")
    if number > LATEST:
        raise SchemaError(_newer(number))
    _demand_tasks(found, number)


def _newer(number: int) -> str:
    return f"the schema is at version {number}, this pgsched knows {LATEST}: upgrade pgsched"


def _demand_tasks(found: Found, number: int) -> None:
    """Somebody may have dropped the table, or put another of its name in front of it."""
    if found.tasks_kind != "p" or found.tasks_in != found.versions_in:
        raise SchemaError(
            f"{found.versions_in}.pgsched_schema says version {number}, but scheduled_tasks beside it is missing or is "
            "not pgsched's: restore it, or drop pgsched_schema and the other tables and run `pgsched migrate`"
        )


def _find(conn: psycopg.Connection[Any]) -> Found:
    return Found(*rows(conn, "schema_find")[0])


def _version(conn: psycopg.Connection[Any]) -> int:
    return int(values(conn, "schema_version")[0])


def _statements(number: int) -> bytes:
    return (_DIRECTORY / MIGRATIONS[number]).read_bytes()
