"""What an enqueue may say beyond the arguments: when, where, how urgent, under which key.

Checked at the call that gives them. Pure; used by ``app`` and ``cli``.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pgsched.errors import UsageError
from pgsched.model import NewTask, TaskType
from pgsched.quantities import check_name, parse_number, parse_priority, parse_seconds

_LONGEST_DELAY = 100 * 366 * 86400.0
"""Seconds."""
_KEY_LENGTH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one enqueue; None stands for the task type's value or for none.

    :raises UsageError: one of them makes no sense.
    """

    run_at: datetime | None = None
    delay: float | str | timedelta | None = None
    queue: str | None = None
    priority: int | None = None
    connection: Any = None
    """A psycopg connection whose transaction the INSERT joins; None: the App's own, committed at once."""
    unique_key: str | None = None
    timeout: float | str | None = None
    max_retries: int | None = None

    def __post_init__(self) -> None:
        if self.run_at is not None:
            _check_time(self.run_at)
            if self.delay is not None:
                raise UsageError(f"run_at and delay {self.delay!r}: give one of them, not both")
        if self.unique_key is not None:
            check_key(self.unique_key)
        if self.queue is not None:
            check_name("queue", self.queue)
        if self.priority is not None:
            parse_priority(self.priority)
        if self.max_retries is not None:
            parse_retries(self.max_retries)
        self._delay()
        self._timeout()

    def new_task(self, task_type: TaskType, payload: str) -> NewTask:
        """Put together the row of one task."""
        return NewTask(
            task_type=task_type.name,
            payload=payload,
            queue=task_type.queue if self.queue is None else self.queue,
            priority=task_type.priority if self.priority is None else self.priority,
            max_retries=task_type.retry.max if self.max_retries is None else self.max_retries,
            run_at=self.run_at,
            delay=self._delay(),
            timeout=self._timeout(),
            unique_key=self.unique_key,
        )

    def _delay(self) -> float:
        delay = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
        return 0.0 if delay is None else parse_delay(delay)

    def _timeout(self) -> float | None:
        return None if self.timeout is None else parse_timeout(self.timeout)


def parse_delay(value: object, option: str = "delay") -> float:
    """Read how long a task waits before it is due.

    :raises UsageError: it is no duration, or over a hundred years.
    """
    return parse_seconds(value, option, 0.0, _LONGEST_DELAY)


def parse_timeout(value: object, option: str = "timeout") -> float:
    """Read how long an attempt may take.

    :raises UsageError: it is no duration that a limit can have.
    """
    return parse_seconds(value, option, 0.001, 1e8)


def parse_retries(value: object, option: str = "max_retries") -> int:
    """Read how often a task may be tried again.

    :raises UsageError: it is no number of times.
    """
    return parse_number(value, option, 0, 2**31 - 1)


def check_key(key: object, option: str = "unique_key") -> str:
    """Return a unique key that the database can hold.

    :raises UsageError: it is not.
    """
    if not isinstance(key, str) or not key or "\0" in key or len(key) > _KEY_LENGTH:
        raise UsageError(f"{option} {str(key)[:60]!r}: must be text of 1 to {_KEY_LENGTH} characters without NUL")
    return key


def _check_time(run_at: object) -> None:
    if not isinstance(run_at, datetime):
        raise UsageError(f"run_at {run_at!r}: must be a datetime")
    offset = run_at.utcoffset()
    if offset is None:
        raise UsageError(
            f"run_at {run_at.isoformat()}: has no time zone, and its due time would depend on the server's; "
            "use an aware datetime such as datetime.now(UTC)"
        )
