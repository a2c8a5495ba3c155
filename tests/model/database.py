"""The real statements on a real server, one transaction a call, and time that passes only when it is told to.

The time is in a table. Functions with the names of PostgreSQL's own clocks read it there, and stand before those in the
search path, so a statement's text needs no change, and no history depends on how fast the machine is.

A transaction may also be left open, as one is that a server is still at while its client has given up. Whoever then
meets its locks waits for a moment and is refused, and has done nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

Load = Callable[[str], bytes]
Statement = tuple[str, Sequence[object]]
"""The name of a file in ``sql/``, and its parameters."""

_OPTIONS = "-c search_path=model,pg_catalog,public"
_CLOCK = """
    DROP SCHEMA IF EXISTS model CASCADE;
    CREATE SCHEMA model;
    CREATE TABLE model.clock (at timestamptz NOT NULL);
    INSERT INTO model.clock VALUES ('2100-01-01');
    CREATE FUNCTION model.now() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT at FROM model.clock';
    CREATE FUNCTION model.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT at FROM model.clock';
"""
_TABLES = ("scheduled_tasks_live", "scheduled_tasks_ended_rest", "pgsched_supervisors", "pgsched_failures")
_TICK = 0.001
"""Seconds between two transactions, no two of which are of the same moment: a reap is known by being later than the
claim."""


class Row(NamedTuple):
    """A task as it is."""

    id: int
    status: str
    fence: int
    claimed_by: int | None
    retry_count: int
    key: str | None


class Database:
    """One test's database.

    :param lines: connections of supervisors.
    :param load: the text of a statement; what a broken twin changes.
    """

    def __init__(self, dsn: str, lines: int, load: Load) -> None:
        self.load = load

        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(dsn, application_name="model", options=f"{_OPTIONS} -c lock_timeout=20ms")

        self._outside = psycopg.connect(dsn, autocommit=True, application_name="tests", options=_OPTIONS)
        self._outside.execute(_CLOCK.encode())
        for table in _TABLES:
            # What a vacuum frees is used again: if it came just then, a row could come back to where its claim had left
            # it. And the lock under which it cuts a table short is not ours to wait for.
            self._outside.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
        self.lines = [connect() for _ in range(lines)]
        self.open = connect()
        """For the transaction that may be left open."""

    def reset(self) -> None:
        """Empty the tables."""
        for connection in (*self.lines, self.open):
            connection.rollback()
        self._outside.execute("DELETE FROM scheduled_tasks")
        self._outside.execute("DELETE FROM pgsched_supervisors; DELETE FROM pgsched_failures")

    def close(self) -> None:
        for connection in (*self.lines, self.open, self._outside):
            connection.close()

    def begin(self, line: psycopg.Connection[Any], *statements: Statement) -> list[list[Any]]:
        """Run statements, and leave their transaction open; return the rows of each."""
        self.advance(_TICK)
        cursor = psycopg.RawCursor(line)
        cursor.execute(self.load("hints"), ("60000", "true", "0"))
        answers = []
        try:
            for name, parameters in statements:
                cursor.execute(self.load(name), parameters or None)
                answers.append(cursor.fetchall() if cursor.description else [])
        except psycopg.Error:
            line.rollback()
            raise
        return answers

    def run(self, line: psycopg.Connection[Any], *statements: Statement) -> list[list[Any]]:
        """Run statements as one transaction."""
        answers = self.begin(line, *statements)
        line.commit()
        return answers

    def land(self, commit: bool) -> None:
        """End the transaction that was left open."""
        if commit:
            self.open.commit()
        else:
            self.open.rollback()

    def outside(self, query: str, *parameters: object) -> list[Any]:
        """What somebody does who is no supervisor."""
        cursor = self._outside.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.outside("UPDATE model.clock SET at = at + make_interval(secs => %s)", seconds)

    def tasks(self) -> list[Row]:
        rows = self.outside("SELECT id, status, fence, claimed_by, retry_count, unique_key FROM scheduled_tasks")
        return [Row(*row) for row in rows]

    def supervisors(self) -> dict[int, bool]:
        """Whether the lease of each is alive."""
        return dict(self.outside("SELECT id, lease_until > clock_timestamp() FROM pgsched_supervisors"))
