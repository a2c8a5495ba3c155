"""The rows of one test's database as a producer and an onlooker see them: plain SQL, outside of pgsched."""

import json
from typing import Any, NamedTuple

from tests.support import PATIENCE, Server, eventually


class Row(NamedTuple):
    """What a task's row tells. Times in seconds since the epoch."""

    status: str
    retry_count: int
    error_log: str | None
    result: Any
    run_at: float
    updated_at: float


class Failure(NamedTuple):
    """One row of ``pgsched_failures``."""

    attempt: int
    outcome: str
    error: str
    exit_code: int | None
    signal: int | None
    cpu_seconds: float | None
    peak_memory: int | None
    stderr: str | None
    stack: str | None
    failed_at: float


class Rows:
    """Enqueues, and reads what became of it."""

    def __init__(self, server: Server, dsn: str) -> None:
        self._server = server
        self._dsn = dsn

    def add(
        self,
        task_type: str,
        payload: dict[str, object] | None = None,
        *,
        count: int = 1,
        due: float = 0.0,
        max_retries: int = 3,
        priority: int = 0,
        queue: str = "default",
    ) -> list[int]:
        """Insert equal rows in one transaction and return their ids.

        :param due: seconds from now.
        """
        rows = self._server.sql(
            "INSERT INTO scheduled_tasks (task_type, payload, run_at, max_retries, priority, queue)"
            " SELECT %s, %s::jsonb, now() + make_interval(secs => %s), %s, %s, %s FROM generate_series(1, %s)"
            " RETURNING id",
            task_type,
            json.dumps(payload or {}),
            due,
            max_retries,
            priority,
            queue,
            count,
            dsn=self._dsn,
        )
        return [number for (number,) in rows]

    def row(self, task_id: int) -> Row:
        """One row as it is now."""
        found = self._server.sql(
            "SELECT status, retry_count, error_log, result, extract(epoch FROM run_at)::float8,"
            " extract(epoch FROM updated_at)::float8 FROM scheduled_tasks WHERE id = %s",
            task_id,
            dsn=self._dsn,
        )
        return Row(*found[0])

    def failures(self, task_id: int) -> list[Failure]:
        """What is recorded of a task's failed attempts, oldest first."""
        found = self._server.sql(
            "SELECT attempt, outcome, error, exit_code, signal, cpu_seconds, peak_memory, stderr, stack,"
            " extract(epoch FROM failed_at)::float8 FROM pgsched_failures WHERE task_id = %s ORDER BY id",
            task_id,
            dsn=self._dsn,
        )
        return [Failure(*each) for each in found]

    def count(self, condition: str) -> int:
        """How many rows there are for which an SQL condition is true."""
        return int(self._server.value(f"SELECT count(*) FROM scheduled_tasks WHERE {condition}", dsn=self._dsn))

    def ids(self, condition: str) -> set[int]:
        """The rows for which an SQL condition is true."""
        rows = self._server.sql(f"SELECT id FROM scheduled_tasks WHERE {condition}", dsn=self._dsn)
        return {number for (number,) in rows}

    def all_ended(self, *, timeout: float = PATIENCE) -> None:
        """Wait until no row is queued or running."""
        eventually(
            lambda: not self.count("status IN ('queued', 'processing')"), "all ended", timeout=timeout, every=0.05
        )
