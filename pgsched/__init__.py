"""CPU-heavy Python tasks that live in PostgreSQL.

What a user's module imports. It loads neither the database driver nor the command line, so that a worker stays
small.
"""

from pgsched.app import App, Enqueuer, Task
from pgsched.context import Interrupted, TaskContext, current_task
from pgsched.errors import (
    AppError,
    DatabaseError,
    DeadlineError,
    ExitCode,
    PgschedError,
    PoolError,
    ResourceError,
    SchemaError,
    UsageError,
)
from pgsched.model import Retry

__all__ = [
    "App",
    "AppError",
    "DatabaseError",
    "DeadlineError",
    "Enqueuer",
    "ExitCode",
    "Interrupted",
    "PgschedError",
    "PoolError",
    "ResourceError",
    "Retry",
    "SchemaError",
    "Task",
    "TaskContext",
    "UsageError",
    "__version__",
    "current_task",
]


def __getattr__(name: str) -> str:
    """``__version__``, looked up when it is asked for: it costs a worker's start more than all the rest."""
    if name != "__version__":
        raise AttributeError(f"module 'pgsched' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pgsched")
    except PackageNotFoundError:
        # Run from a source tree that is not installed.
        return "0"
