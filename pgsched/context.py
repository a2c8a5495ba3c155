"""What a task can ask about itself while it runs in a worker: ``current_task()``.

A worker runs one task at a time, so this is module state that every thread of the task sees, and a process that
the task forks inherits. The worker sets it (``pool/runner.py``); nothing here knows how tasks are run.
"""

import time
from collections.abc import Callable

from pgsched.model import OutcomeKind


class Interrupted(BaseException):
    """Raised in the main thread of a task that should stop: at a limit, a cancel, or the supervisor's stop.

    It is no ``Exception``, so that ``except Exception`` lets it pass. Clean up and let it go on: the worker is killed
    when the grace period is over, whatever the task does. A task that returns all the same has completed.
    """

    def __init__(self, kind: OutcomeKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        """Why: timed out, over memory, cancelled or interrupted."""
        self.reason = reason
        """In words: "timed out after 60 s"."""


class TaskContext:
    """The task that runs here."""

    __slots__ = ("_asked", "attempt", "deadline", "fence", "id", "max_retries", "queue", "task_type")

    def __init__(
        self,
        id: int,  # noqa: A002
        task_type: str,
        queue: str,
        attempt: int,
        fence: int,
        max_retries: int,
        deadline: float | None,
        asked: Callable[[], str | None],
    ) -> None:
        self.id = id
        """``scheduled_tasks.id``."""
        self.task_type = task_type
        self.queue = queue
        self.attempt = attempt
        """1 for the first execution, and again for the first after ``pgsched retry``."""
        self.fence = fence
        """With the id the name of this execution: no other has had it, nor will. Grows from one to the next."""
        self.max_retries = max_retries
        self.deadline = deadline
        """When the time limit is reached, as ``time.monotonic()`` counts; None without a limit."""
        self._asked = asked

    def remaining(self) -> float | None:
        """Seconds until the time limit, negative past it; None without a limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def stop_requested(self) -> bool:
        """Whether the task should stop: soon after this is true, :class:`Interrupted` is raised and then the worker
        killed. Costs a look into shared memory."""
        return self._asked() is not None

    @property
    def stop_reason(self) -> str | None:
        """Why the task should stop, in words; None while it need not."""
        return self._asked()

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_type} {self.id}, attempt {self.attempt}>"


_current: TaskContext | None = None


def current_task() -> TaskContext:
    """The task that this process runs.

    :raises LookupError: none: the function was called directly, not by a worker.
    """
    if _current is None:
        raise LookupError("no task runs in this process: current_task() is for functions that a worker runs")
    return _current


def enter(context: TaskContext | None) -> None:
    """Set what :func:`current_task` returns; for workers only."""
    global _current
    _current = context
