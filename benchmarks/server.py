"""The PostgreSQL server that is measured: given by DSN, or an embedded one that lives as long as the invocation.

Every measurement happens in a schema of its own with a random name, which is dropped again; nothing else of the server
is touched, and no superuser is needed. Processor time is read from this host's process table, and is None where the
server does not run here. Keeps no connection open, because sessions of ours would be part of what is measured.
"""

import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.processes import usage, used_below
from pgsched.errors import UsageError
from pgsched.ops import embedded
from pgsched.pool.limits import entry
from pgsched.store.connection import connect_sync
from pgsched.store.schema import migrate

APPLICATION = "pgsched benchmarks"
PREFIX = "pgsched_bench_"
SETTINGS = (
    *("synchronous_commit", "fsync", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size"),
    *("max_connections", "max_locks_per_transaction", "autovacuum", "autovacuum_naptime", "jit"),
)

HOLDERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE usename = current_user AND pid IN (
        SELECT pg_locks.pid FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
        WHERE pg_locks.pid <> pg_backend_pid() AND pg_class.relnamespace = to_regnamespace(%s)
        AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""


class Counters(NamedTuple):
    """What the server has counted since its start. Sessions report their commits late: when they have been idle for a
    while, and at their end. So read this when those that are to be counted are gone."""

    commits: int
    """In this database."""
    wal_bytes: int


class Server:
    """A server that runs already.

    :param dsn: for libpq; whatever it holds (TLS, passwords, ...) is passed on as it is.
    :raises UsageError, DatabaseError: it is malformed, or the server cannot be reached.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._look()

    def _look(self) -> None:
        with self._connect() as connection:
            self.version = connection.info.server_version
            self._postmaster = _postmaster(connection)
            self.data_directory: Path | None = None
            if self.local:
                with suppress(errors.InsufficientPrivilege):
                    self.data_directory = Path(_value(connection, "SELECT current_setting('data_directory')"))

    @property
    def local(self) -> bool:
        """Whether the server runs on this host, so that its processes can be seen and its clock is ours."""
        return self._postmaster is not None

    def cpu_seconds(self) -> float | None:
        """User and system time of all of the server's processes since its start; None where it is not on this host."""
        if self._postmaster is None:
            return None
        return usage(self._postmaster).own + used_below(self._postmaster)

    def counters(self) -> Counters:
        """Commits and WAL up to now; see :class:`Counters`."""
        query = (
            "SELECT xact_commit, pg_current_wal_lsn() - '0/0' FROM pg_stat_database WHERE datname = current_database()"
        )
        with self._connect() as connection:
            [[commits, wal_bytes]] = connection.execute(query).fetchall()
            return Counters(int(commits), int(wal_bytes))

    def about(self) -> tuple[str, dict[str, str]]:
        """The server's version in words, and the settings that matter."""
        with self._connect() as connection:
            settings = {name: str(_value(connection, f"SELECT current_setting('{name}')")) for name in SETTINGS}
            return str(_value(connection, "SELECT current_setting('server_version')")), settings

    def restart(self) -> None:
        """Stop and start the embedded server; sessions end, data stay.

        :raises RuntimeError: it is not ours to restart.
        """
        raise RuntimeError("only the embedded server can be restarted")

    @contextmanager
    def fresh(self, *, empty: bool = False) -> Iterator[str]:
        """The DSN of a new schema with pgsched's tables and no rows; dropped after the body, however that ends.

        :param empty: without the tables.
        """
        name = f"{PREFIX}{secrets.token_hex(8)}"
        try:
            with self._connect() as connection:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            dsn = with_search_path(self.dsn, name)
            if not empty:
                migrate(dsn)
            yield dsn
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        statement = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
        with self._connect() as connection:
            connection.execute("SET lock_timeout = '2s'")
            try:
                connection.execute(statement)
            except errors.LockNotAvailable:
                # Whoever still works on a schema of ours is something of ours that was killed.
                connection.execute(HOLDERS, [name])
                connection.execute(statement)

    def _connect(self) -> psycopg.Connection[Any]:
        return connect_sync(self.dsn, application_name=APPLICATION)


class Embedded(Server):
    """The embedded server in a directory of its own, with its default, durable settings."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._handle = embedded.start(directory)
        super().__init__(self._handle.dsn)

    def restart(self) -> None:
        """Stop and start it; sessions end, data stay."""
        self._handle.close()
        self._handle = embedded.start(self._directory)
        self._look()

    def close(self) -> None:
        """Stop it."""
        self._handle.close()


@contextmanager
def server(dsn: str | None) -> Iterator[Server]:
    """The server to measure.

    :param dsn: None for an embedded one, which is gone after the body.
    :raises UsageError: there is a ``scheduled_tasks`` where the DSN leads to, which is somebody's and not ours.
    """
    if dsn is not None:
        refuse_taken(dsn)
        yield Server(dsn)
        return
    # Not /tmp, which is in memory on many hosts: a durable commit would cost nothing there.
    place = None if "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK) else "/var/tmp"
    with TemporaryDirectory(prefix="pgsched-bench-", dir=place) as directory:
        # As root the server runs as another user, who must get through.
        os.chmod(directory, 0o711)
        running = Embedded(Path(directory) / "server")
        try:
            yield running
        finally:
            running.close()


def refuse_taken(dsn: str) -> None:
    """Do nothing if no ``scheduled_tasks`` can be seen where a DSN leads to.

    We would not touch it, but hints and advisory locks are shared by the whole database.

    :raises UsageError: there is one.
    """
    query = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('scheduled_tasks')"
    with connect_sync(dsn, application_name=APPLICATION) as connection:
        row = connection.execute(query).fetchone()
    if row is not None:
        raise UsageError(
            f"--dsn leads to {row[0]}.scheduled_tasks, which the benchmarks did not create: give a database without one"
        )


def with_search_path(dsn: str, schema: str) -> str:
    """The same DSN, but its sessions see this schema only."""
    options = conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS", "")
    # The last one counts.
    return make_conninfo(dsn, options=f"{options} -c search_path={schema}".strip())


def _postmaster(connection: psycopg.Connection[Any]) -> int | None:
    """The pid of the server's first process; None when it is not on this host, or not to be seen from here.

    A pooler or a tunnel may be local although the server is not, so the session's process must be known for ours: by
    the process that listens on the Unix socket, or by our own port, which PostgreSQL puts into the process's title.
    """
    backend = entry(connection.info.backend_pid)
    if backend is None:
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        if ours.family == socket.AF_UNIX:
            listening, *_ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return backend.parent if listening == backend.parent else None
        port = ours.getsockname()[1]
    with open(f"/proc/{backend.pid}/cmdline", "rb") as file:
        title = file.read()
    return backend.parent if title.startswith(b"postgres: ") and f"({port})".encode() in title else None


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    [[value]] = connection.execute(query.encode()).fetchall()
    return value
