"""The values that pass between the parts of pgsched: no I/O, no behaviour beyond reading themselves.

The way of a task is one line: row -> claim -> dispatch -> outcome -> verdict -> settle -> row. Each
arrow hands on one of the immutable values below. The ones made for every task are named tuples,
because those cost a third of a frozen dataclass.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """``scheduled_tasks.status``: the article's values and one more."""

    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OutcomeKind(StrEnum):
    """What happened to a claim. Each claim that was dispatched has exactly one."""

    RETURNED = "returned"
    """The function returned, and its result is JSON within the size limit."""
    RAISED = "raised"
    """The function raised, left the interpreter politely, or its arguments or result were unusable."""
    CRASHED = "crashed"
    """The worker died under the task: a signal that was not ours, or an exit."""
    TIMED_OUT = "timed_out"
    """The parent stopped the task at its time limit."""
    OVER_MEMORY = "over_memory"
    """The parent stopped the task at its memory limit."""
    CANCELLED = "cancelled"
    """The parent stopped the task because the claim is no longer ours (cancel, or a lost lease)."""
    INTERRUPTED = "interrupted"
    """The parent stopped the task to stop itself (drain), or never started it."""
    LOST = "lost"
    """The supervisor that held the claim died or lost its lease; found by a reaper."""


class VerdictKind(StrEnum):
    """What the rules say to write for an outcome."""

    COMPLETED = "completed"
    RETRY = "retry"
    FAILED = "failed"
    RELEASED = "released"
    """Back to ``queued`` at no cost: ``retry_count`` and ``run_at`` stay."""


class NewTask(NamedTuple):
    """A task that is to be enqueued."""

    task_type: str
    payload: str
    """The keyword arguments as JSON text."""
    queue: str = "default"
    priority: int = 0
    max_retries: int = 3
    run_at: datetime | None = None
    """With a time zone; None: ``delay`` seconds from now by the database's clock."""
    delay: float = 0.0
    timeout: float | None = None
    """Seconds; None: the task type's."""
    unique_key: str | None = None
    """While a live task has this key, another one is not made, and its id is the answer."""


class Group(NamedTuple):
    """Queued rows that share what decides their turn; found by ``discover``."""

    task_type: str
    queue: str
    priority: int
    """Higher first."""
    head_id: int
    head_run_at: str
    """The oldest row's ``run_at`` as PostgreSQL's text; opaque, handed back as a claim's floor."""
    due_in: float
    """Seconds until the oldest row is due, by the database's clock; zero or negative when it is."""
    partition: int | None = None
    """The one that the rows are in; None for a supervisor that is bound to none, and sees all as one."""


class Horizon(NamedTuple):
    """How far the server's transactions have come; those that only read have no number."""

    oldest: int
    """All with a lower number are over."""
    next: int
    """No number from here on was given away."""


class Want(NamedTuple):
    """How many rows a claim may take from one group, and from where on."""

    task_type: str
    queue: str
    priority: int
    quota: int
    floor_run_at: str | None = None
    """Inclusive lower bound (with ``floor_id``) that spares the scan the dead index entries below it."""
    floor_id: int = 0
    partition: int | None = None
    """That of the group."""
    passing: bool = False
    """Leave what another transaction may be about to take without asking for its lock."""


class Claim(NamedTuple):
    """A task and the fence under which one supervisor holds it."""

    task_id: int
    fence: int
    task_type: str
    queue: str
    priority: int
    payload: str
    """The keyword arguments as JSON text; the parent never parses it. Empty: it is too large to be sent anywhere."""
    retry_count: int
    max_retries: int
    timeout: float | None
    """Seconds, from the row; overrides the task type's."""
    late: float
    """Seconds between ``run_at`` and the claim, by the database's clock."""
    run_at: str
    """PostgreSQL's text; opaque."""
    place: str | None = None
    """Where the claim left the row (``ctid``), if that is known; spares the settle an index lookup. Opaque."""
    partition: int | None = None
    """That of the want; only in the books of a supervisor that is bound to some."""

    @property
    def attempt(self) -> int:
        """1 for the first execution."""
        return self.retry_count + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt did not return: what ``pgsched_failures`` keeps of it."""

    error: str
    """One line: class and message, or what the parent saw ("killed by signal 9 (SIGKILL)")."""
    traceback: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool | None = None
    """True or False where it is known (memory limit, the kernel's own record), else None."""
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    """Bytes: the worker's peak resident set."""
    stderr: str | None = None
    """The last lines that the worker wrote to its standard error during the attempt."""
    stack: str | None = None
    """The Python stack of every thread at the moment a limit was reached."""


class Outcome(NamedTuple):
    """What happened to a claim."""

    kind: OutcomeKind
    seconds: float
    """From start to end of the attempt by the monotonic clock; 0 when it never started."""
    result: str | None = None
    """JSON text; None stands for a function that returned None."""
    failure: Failure | None = None
    slot: int | None = None
    pid: int | None = None


class Verdict(NamedTuple):
    """One row's worth of a settle, guarded by the claim's fence."""

    claim: Claim
    kind: VerdictKind
    seconds: float
    """Run time of the attempt, so that the settle can write ``started_at`` by the database's clock."""
    delay: float = 0.0
    """RETRY: seconds from the settle until the row is due again."""
    result: str | None = None
    outcome: OutcomeKind = OutcomeKind.RETURNED
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a failed task is tried again.

    The delay before retry n (1, 2, ...) is drawn uniformly from 0 to ``min(cap, base * 2**(n-1))``
    seconds: capped exponential backoff with full jitter (Marc Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015).

    :param max: retries granted after the first execution; 0 means one execution.
    :param base: seconds.
    :param cap: seconds.
    :raises ValueError: a value is negative, not finite, or ``max`` exceeds 2**31 - 1.
    """

    max: int = 3
    base: float = 1.0
    cap: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.max, bool) or not isinstance(self.max, int) or not 0 <= self.max < 2**31:
            raise ValueError(f"Retry(max={self.max!r}): must be a whole number from 0 to 2147483647")
        for name in ("base", "cap"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
                raise ValueError(f"Retry({name}={value!r}): must be seconds from 0 to 1e9")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """What the supervisor knows of a registered function; crosses from the workers as JSON."""

    name: str
    queue: str = "default"
    priority: int = 0
    timeout: float | None = None
    """Seconds."""
    memory: int | None = None
    """Bytes of resident memory that the worker and its descendants may use together."""
    retry: Retry = field(default_factory=Retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which process a supervisor is, precise enough to know on the same host that it is dead."""

    host: str
    boot_id: str
    pid_namespace: int
    """Inode of ``/proc/self/ns/pid``."""
    pid: int
    started_ticks: int
    """Start time in clock ticks since boot (field 22 of ``/proc/PID/stat``): tells reused pids apart."""
    processes: int
    queues: tuple[str, ...] = ()
    """Empty: all queues."""
    task_types: tuple[str, ...] = ()
    version: str = ""
    partitions: tuple[int, ...] = ()
    """Empty: all."""
