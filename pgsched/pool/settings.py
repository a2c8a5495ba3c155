"""What a pool is told. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool; they stay as they are, but for the number of slots (``Pool.resize``)."""

    app: str
    """``module:attribute``; the attribute is "app" when it is left out. Only forkserver and workers import it."""
    processes: int
    """Slots, at least 1."""
    start_method: str = "forkserver"
    """ "forkserver": workers are forked from a process that has imported the app; "spawn": each imports it anew."""
    max_tasks_per_worker: int | None = None
    """A worker never runs more tasks than that; then it is replaced."""
    max_memory_per_worker: int | None = None
    """Bytes; a worker that is larger between two tasks is replaced."""
    grace: float = 5.0
    """Seconds from the soft signal to SIGKILL."""
    boot_timeout: float = 60.0
    """Seconds that an import, or the start of a worker, may take."""
    result_limit: int = 1024 * 1024
    """Bytes of a result's JSON."""
    preparation: str | None = None
    """``module:callable``, called in each process that imports the app, before that."""
    recorder: str | None = None
    """``module:callable``, called in each worker with its slot's number."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of forkserver and workers."""
    dsn: str | None = None
    """Handed to the app in each worker, and to every other App there as ``PGSCHED_DSN``."""
