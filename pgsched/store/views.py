"""What the command line shows of the database: counts, tasks, failures, supervisors. Values only; nothing is printed.

Only reads, each statement with a snapshot of its own, and each so that ten million ended rows do not matter.
Runs in the command line.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import Buffer
from psycopg.rows import class_row
from psycopg.types.datetime import TimestamptzLoader

from pgsched.model import Status
from pgsched.store.capacity import Capacity, capacity, read_attempts
from pgsched.store.refusals import refusals
from pgsched.store.sql import load
from pgsched.store.statements import made, rows, run, values

T = TypeVar("T")

COUNT_LIMIT: Final = 100_000
"""Where counting stops: of queued tasks in each (type, queue, priority), of ended ones in each status."""
FAILURES_LIMIT: Final = 1000
_PATIENCE: Final = "60000"
"""Milliseconds, as text: no count is worth more."""
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks are meant; what is None lets all pass, an empty sequence none."""

    ids: Sequence[int] | None = None
    statuses: Sequence[str] | None = None
    task_types: Sequence[str] | None = None
    queues: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many tasks of one queue, type and status there are."""

    queue: str
    task_type: str
    status: str
    tasks: int
    at_least: bool
    """The counting stopped at `COUNT_LIMIT`: there may be more. Of ended tasks, only the newest were looked at."""
    oldest_due: float | None = None
    """Queued: for how many seconds the oldest has been due; None when none is."""
    served: bool = True
    """Queued: whether a live supervisor knows the type and serves the queue."""
    became_due: int | None = None
    """Queued: how many became due in the seconds that `Capacity.window` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """A row of ``pgsched_supervisors``."""

    id: int
    host: str
    pid: int
    processes: int
    queues: list[str]
    """Empty: all."""
    task_types: list[str]
    partitions: list[int]
    """Empty: all."""
    version: str
    listening: bool
    registered_at: datetime
    lease_until: datetime
    lease_seconds: float
    """Until the lease runs out; negative when it has."""
    age: float
    """Seconds since it registered."""
    claims: int
    """Tasks that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What ``pgsched status`` shows."""

    counts: list[Count]
    supervisors: list[Supervisor]
    ownerless: int
    """Tasks in work that belong to no known supervisor."""
    ended_about: int | None
    """All ended tasks, as of the last ANALYZE; None: unknown."""
    partitions: dict[int, bool]
    """Those that the live tasks are split into, if they are, and whether a live supervisor serves each."""
    capacity: Capacity

    @property
    def oldest_due(self) -> dict[str, float]:
        """For how many seconds the oldest due task of each queue has waited; a queue without due tasks is left out."""
        found: dict[str, float] = {}
        for count in self.counts:
            if count.oldest_due is not None:
                found[count.queue] = max(count.oldest_due, found.get(count.queue, 0.0))
        return found

    def busy(self, supervisor: Supervisor) -> float:
        """The share of its time of late in which its processes had tasks."""
        return self.capacity.busy(supervisor.id, supervisor.processes, supervisor.age)

    @property
    def unserved(self) -> list[Count]:
        """Queued tasks that no live supervisor would take: an unknown type, or a queue that nobody serves."""
        return [count for count in self.counts if not count.served]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """A task in a list."""

    id: int
    task_type: str
    queue: str
    priority: int
    status: str
    retry_count: int
    max_retries: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    error: str | None
    """The last error, its first 1,000 characters."""
    claimed_by: int | None
    """The supervisor that holds it; only while it is processing."""
    host: str | None
    pid: int | None
    lease_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A row of ``pgsched_failures``: an attempt that did not return."""

    id: int
    attempt: int
    fence: int
    outcome: str
    error: str
    traceback: str | None
    exit_code: int | None
    signal: int | None
    out_of_memory: bool | None
    cpu_seconds: float | None
    peak_memory: int | None
    """Bytes."""
    stderr: str | None
    stack: str | None
    seconds: float
    supervisor: int | None
    failed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A row of ``scheduled_tasks`` with all its columns."""

    id: int
    task_type: str
    payload: str | None
    """JSON text; None: the role may not read payloads and results."""
    run_at: datetime
    status: str
    max_retries: int
    retry_count: int
    error_log: str | None
    created_at: datetime
    updated_at: datetime
    queue: str
    priority: int
    fence: int
    claimed_by: int | None
    started_at: datetime | None
    finished_at: datetime | None
    result: str | None
    """JSON text."""
    timeout: float | None
    unique_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What ``pgsched show`` shows."""

    task: TaskRow
    failures: list[Attempt]
    """Oldest first; the last `FAILURES_LIMIT` of them."""
    holder: Supervisor | None
    """Who works on it; None also for a worker that is no supervisor."""


def status(conn: psycopg.Connection[Any], count_limit: int = COUNT_LIMIT) -> Overview:
    """Count the tasks and list the supervisors.

    :param count_limit: where the counting stops, so that it takes well under a second whatever is in the table.
    :raises DatabaseError: the server refused.
    """
    with refusals("cannot read the status"), conn.transaction():
        # Just after a bulk load the planner knows nothing of the table, and would sort it.
        run(conn, "hints", _PATIENCE, "true", "0")
        window, attempts = read_attempts(conn)
        queued = made(conn, class_row(Count), "status_queued", count_limit, window)
        processing = rows(conn, "status_processing")
        ended = rows(conn, "status_ended", count_limit)
        others = [
            Count(queue=queue, task_type=task_type, status=name, tasks=tasks, at_least=more)
            for queue, task_type, name, tasks, more in [row[:5] for row in processing] + ended
        ]
        waiting = Counter[str]()
        for count in queued:
            waiting[count.task_type] += count.became_due or 0
        return Overview(
            counts=queued + others,
            supervisors=_read(conn, Supervisor, "list_supervisors", None),
            ownerless=sum(row[5] for row in processing),
            ended_about=values(conn, "status_size")[0],
            partitions=partitions(conn),
            capacity=capacity(window, attempts, waiting),
        )


def partitions(conn: psycopg.Connection[Any]) -> dict[int, bool]:
    """The partitions of the live tasks, and whether a live supervisor serves each; empty when they are in one table."""
    with refusals("cannot read the partitions"):
        return dict(rows(conn, "partitions"))


def list_tasks(conn: psycopg.Connection[Any], chosen: Filter, limit: int = 100) -> list[TaskLine]:
    """The newest tasks that pass the filter, newest first.

    :raises DatabaseError: the server refused.
    """
    with refusals("cannot list tasks"), iso_dates(conn):
        return _read(conn, TaskLine, "list_tasks", *parameters(chosen), limit)


def show(conn: psycopg.Connection[Any], task_id: int) -> Details | None:
    """Everything about one task; None when there is none.

    :raises DatabaseError: the server refused.
    """
    with refusals("cannot show the task"), iso_dates(conn):
        statement = "show_task" if values(conn, "show_rights")[0] else "show_task_outline"
        for task in _read(conn, TaskRow, statement, task_id):
            holder = []
            if task.status == Status.PROCESSING and task.claimed_by is not None:
                holder = _read(conn, Supervisor, "list_supervisors", task.claimed_by)
            failures = _read(conn, Attempt, "show_failures", task_id, FAILURES_LIMIT)
            return Details(task=task, failures=failures, holder=holder[0] if holder else None)
        return None


def parameters(chosen: Filter) -> tuple[list[int] | None, list[str] | None, list[str] | None, list[str] | None]:
    """The first four parameters of every statement that takes a filter."""
    return (
        None if chosen.ids is None else list(chosen.ids),
        None if chosen.statuses is None else list(map(str, chosen.statuses)),
        None if chosen.task_types is None else list(chosen.task_types),
        None if chosen.queues is None else list(chosen.queues),
    )


@contextmanager
def iso_dates(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction in which times are written so that they can be read back, whatever the role has been told."""
    with conn.transaction():
        run(conn, "iso_dates")
        yield


class _BoundedTime(TimestamptzLoader):
    """A time that Python has no datetime for (``infinity``, before Christ, after 9999) becomes the nearest that it has.

    A day is left at both ends, for whoever shows it in another time zone.
    """

    def load(self, data: Buffer) -> datetime:
        try:
            return max(_EARLIEST, min(super().load(data), _LATEST))
        except (psycopg.DataError, OverflowError):
            text = bytes(data)
            return _EARLIEST if text.startswith((b"-", b"0")) or text.endswith(b"BC") else _LATEST


def _read(conn: psycopg.Connection[Any], kind: type[T], name: str, *arguments: object) -> list[T]:
    with psycopg.RawCursor(conn, row_factory=class_row(kind)) as cursor:
        cursor.adapters.register_loader("timestamptz", _BoundedTime)
        return cursor.execute(load(name), arguments).fetchall()
