"""What tests of several floors share: waiting without sleeping, the database server, the process table.

Runs in the test process. Nothing here replaces a part of pgsched: the server and the processes are real.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).resolve().parent.parent

PATIENCE = 30.0
"""Seconds to wait for what has to happen: the machine may be busy, and who waits longer than needed loses nothing."""

FULL = os.environ.get("PGSCHED_TEST_FULL") == "1"
"""Whether tests that are made small for CI are to be run at their full size."""

T = TypeVar("T")


def eventually(condition: Callable[[], T], what: str = "", *, timeout: float = PATIENCE, every: float = 0.01) -> T:
    """Poll `condition` until it is true, and return its value; fail the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}; last value {value!r}")
        time.sleep(every)


async def eventually_async(
    condition: Callable[[], T | Awaitable[T]], what: str = "", *, timeout: float = PATIENCE, every: float = 0.01
) -> T:
    """The same for a test that runs in a loop; `condition` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        value: Any = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value  # type: ignore[no-any-return]
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or condition}; last value {value!r}")
        await asyncio.sleep(every)


class Backend(NamedTuple):
    """One row of ``pg_stat_activity``."""

    pid: int
    application_name: str
    state: str
    wait_event_type: str | None
    wait_event: str | None
    query: str


class Server:
    """The PostgreSQL server of the session, seen by a superuser outside of what is tested."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True, application_name="tests")
        self._databases = 0

    @property
    def version(self) -> int:
        """As ``server_version_num``: 150012, 180006."""
        return self._connection.info.server_version

    def dsn_for(self, database: str) -> str:
        return make_conninfo(self.dsn, dbname=database)

    def sql(self, query: str, *parameters: object, dsn: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement, committed at once, and return its rows; on `dsn` with a connection of its own."""
        if dsn is None:
            return _rows(self._connection, query, parameters)
        with psycopg.connect(dsn, autocommit=True, application_name="tests") as connection:
            return _rows(connection, query, parameters)

    def value(self, query: str, *parameters: object, dsn: str | None = None) -> Any:
        """The first column of the first row."""
        return self.sql(query, *parameters, dsn=dsn)[0][0]

    def backends(self, dsn: str) -> list[Backend]:
        """The client sessions on the database of `dsn`, those of the tests themselves left out."""
        rows = self.sql(
            "SELECT pid, application_name, coalesce(state, ''), wait_event_type, wait_event, query"
            " FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            " AND application_name <> 'tests' ORDER BY backend_start",
            database_of(dsn),
        )
        return [Backend(*row) for row in rows]

    def terminate(self, dsn: str, application_name: str = "%") -> int:
        """End the sessions on the database of `dsn` whose name is LIKE `application_name`; how many there were."""
        return len(
            self.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                " AND backend_type = 'client backend' AND application_name <> 'tests' AND application_name LIKE %s",
                database_of(dsn),
                application_name,
            )
        )

    def waits_for_lock(self, dsn: str) -> bool:
        """Whether some session on the database waits for a lock: what a race test asks instead of sleeping."""
        return any(backend.wait_event_type == "Lock" for backend in self.backends(dsn))

    def create(self, template: str = "template1", options: str = "") -> str:
        """Make a database, and return its DSN.

        :param options: of CREATE DATABASE.
        """
        self._databases += 1
        name = f"pgsched_test_{os.getpid()}_{self._databases}"
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {options}')
        return self.dsn_for(name)

    def drop(self, dsn: str) -> None:
        self.sql(f'DROP DATABASE IF EXISTS "{database_of(dsn)}" WITH (FORCE)')

    def leftovers(self, dsn: str) -> list[str]:
        """What a test must not leave behind in its database: open transactions and advisory locks."""
        name = database_of(dsn)
        found = [
            f"{backend.state}: {backend.application_name} ran {backend.query[:100]!r}"
            for backend in self.backends(dsn)
            if backend.state.startswith("idle in transaction")
        ]
        locks = self.value(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = %s)",
            name,
        )
        return [*found, f"{locks} advisory locks"] if locks else found

    def close(self) -> None:
        self._connection.close()


def database_of(dsn: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])


def _rows(connection: psycopg.Connection[Any], query: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query.encode(), parameters or None)
    return cursor.fetchall() if cursor.description else []


class Process(NamedTuple):
    """One row of the process table, from ``/proc/PID/stat``."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int

    @property
    def dead(self) -> bool:
        return self.state in "ZX"

    @property
    def command(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            return self.name


def process(pid: int) -> Process | None:
    """The process with that id, or None; a zombie is still one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    state, parent, group, session = text[text.rindex(")") + 2 :].split()[:4]
    return Process(pid, name, state, int(parent), int(group), int(session))


def processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := process(int(entry))) is not None:
            yield found


def descendants(pid: int) -> list[Process]:
    """All processes below `pid`, zombies left out."""
    children: dict[int, list[Process]] = {}
    for found in processes():
        if not found.dead:
            children.setdefault(found.parent, []).append(found)
    result: list[Process] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        result += below
        waiting += [found.pid for found in below]
    return result


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    found = process(pid)
    return found is None or found.dead
