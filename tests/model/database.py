"""The real statements on a real server, one transaction a call, and time that passes when it is told to.

A transaction may also be left open, as one is that a server is still at while its client has given up. Whoever then
meets its locks waits for a moment and is refused, and has done nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

Load = Callable[[str], bytes]
Statement = tuple[str, Sequence[object]]
"""The name of a file in ``sql/``, and its parameters."""

_AGE = """
    WITH free AS (SELECT id FROM {table} FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE {table} AS row SET {change} FROM free WHERE row.id = free.id RETURNING row.id
"""
_AGE_THESE = "UPDATE {table} AS row SET {change} WHERE id = ANY (%(ids)s)"
_CHANGES = {
    "pgsched_supervisors": "lease_until = lease_until - %(by)s * interval '1 second'",
    "scheduled_tasks_live": "updated_at = updated_at - %(by)s * interval '1 second',"
    " run_at = run_at - %(by)s * interval '1 second', started_at = started_at - %(by)s * interval '1 second'",
}


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
            return psycopg.connect(dsn, application_name="model", options="-c lock_timeout=20ms")

        self.lines = [connect() for _ in range(lines)]
        self.open = connect()
        """For the transaction that may be left open."""
        self._outside = psycopg.connect(dsn, autocommit=True, application_name="tests")
        self._owed: dict[str, set[int]] = {}
        self._by = 0.0

    def reset(self) -> None:
        """Empty the tables."""
        self._owed, self._by = {}, 0.0
        for connection in (*self.lines, self.open):
            connection.rollback()
        self._outside.execute("DELETE FROM scheduled_tasks")
        self._outside.execute("DELETE FROM pgsched_supervisors; DELETE FROM pgsched_failures")

    def close(self) -> None:
        for connection in (*self.lines, self.open, self._outside):
            connection.close()

    def begin(self, line: psycopg.Connection[Any], *statements: Statement) -> list[list[Any]]:
        """Run statements, and leave their transaction open; return the rows of each."""
        cursor = psycopg.RawCursor(line)
        cursor.execute(self.load("hints"), ("60000", "true"))
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
        """End the transaction that was left open; what it had locked meanwhile grows older now."""
        if commit:
            self._pay(self.open)
            self.open.commit()
        else:
            self.open.rollback()
            self._pay(self._outside)
        self._owed, self._by = {}, 0.0

    def outside(self, query: str, *parameters: object) -> list[Any]:
        """What somebody does who is no supervisor."""
        cursor = self._outside.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def age(self, by: float) -> None:
        """Let so many seconds pass: everything that bears a time grows older."""
        for table, change in _CHANGES.items():
            statement = _AGE.format(table=table, change=change)
            aged = {row[0] for row in self._outside.execute(statement.encode(), {"by": by})}
            present = {row[0] for row in self.outside(f"SELECT id FROM {table}")}
            self._owed.setdefault(table, set()).update(present - aged)
        self._by += by

    def tasks(self) -> list[Row]:
        rows = self.outside("SELECT id, status, fence, claimed_by, retry_count, unique_key FROM scheduled_tasks")
        return [Row(*row) for row in rows]

    def supervisors(self) -> dict[int, bool]:
        """Whether the lease of each is alive."""
        return dict(self.outside("SELECT id, lease_until > clock_timestamp() FROM pgsched_supervisors"))

    def _pay(self, line: psycopg.Connection[Any]) -> None:
        for table, ids in self._owed.items():
            if ids:
                statement = _AGE_THESE.format(table=table, change=_CHANGES[table])
                line.execute(statement.encode(), {"by": self._by, "ids": list(ids)})
