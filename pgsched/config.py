"""The settings of ``pgsched run``: names, defaults, ranges.

Everything that can be wrong ends in a :class:`UsageError` of one line that names the option, its value and
what would be right, before any connection is opened. Built by ``cli`` and read by ``supervisor``; no I/O but
what :func:`pgsched.quantities.available_cpus` reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgsched.errors import UsageError
from pgsched.quantities import (
    Address,
    available_cpus,
    check_name,
    parse_address,
    parse_bytes,
    parse_number,
    parse_seconds,
)

MAX_PROCESSES = 1024
MAX_PARTITIONS = 256
"""Every statement that knows only an id looks into each."""
MIN_LEASE = 2.0
"""Seconds; less leaves no room for a renewal that is answered late."""
MAX_LEASE = 120.0
"""Seconds; the article's reaper takes a row after 300 without an update, and ours must be far quicker."""
METRICS_ADDRESS = Address("127.0.0.1", 9808)

Reader = Callable[[Any, str], Any]
"""Takes a value and the name of its option; returns it read and checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``pgsched run`` was told. Build it with :meth:`parse`; the constructor checks nothing."""

    app: str
    """``module:attribute``."""
    processes: int = field(default_factory=available_cpus)
    """Slots: how many tasks run at once."""
    queues: tuple[str, ...] = ()
    """Empty: all queues."""
    partitions: tuple[int, ...] = ()
    """Empty: all partitions, as if they were one table."""
    dsn: str | None = None
    db_timeout: float = 10.0
    """Seconds that any database call may take."""
    poll_interval: float = 1.0
    """Seconds between two looks for due tasks when nothing wakes the supervisor earlier."""
    poll_only: bool = False
    """Never LISTEN."""
    pooled: bool = False
    """The DSN leads to a transaction pooler: prepare nothing and rely on no session."""
    lease: float = 15.0
    """Seconds until a silent supervisor's claims may be taken over."""
    reap_interval: float = 5.0
    """Seconds between two looks for such claims."""
    drain_timeout: float = 60.0
    """Seconds that running tasks get to finish after the first signal; 0 gives them back at once."""
    max_tasks_per_worker: int | None = None
    """A worker is replaced after so many tasks."""
    max_memory_per_worker: int | None = None
    """Bytes; a worker that has grown beyond is replaced after its task."""
    boot_timeout: float = 60.0
    """Seconds that an import of the app, or the start of a worker, may take."""
    start_method: str = "forkserver"
    namespace: int = 1337
    """First key of the claim's advisory locks; the second is the task's id."""
    metrics_address: Address | None = METRICS_ADDRESS
    """Where metrics and health are served; None for nowhere."""
    log_format: str = "text"
    prune_older_than: float | None = None
    """Seconds; tasks that ended longer ago are deleted on a timer."""

    @classmethod
    def parse(cls, app: str, options: Mapping[str, object], names: Mapping[str, str] | None = None) -> "Settings":
        """Read settings as a user gave them.

        :param options: values by field name, as text or in their own type; None stands for the default.
        :param names: how messages call a field that was not given as its option: ``{"lease": "PGSCHED_LEASE"}``.
        :raises UsageError: the first value that is wrong.
        """
        shown = names or {}
        values = {name: read(name, value, shown.get(name)) for name, value in options.items() if value is not None}
        return cls(app=_app(app), **values)


def read(name: str, value: object, shown: str | None = None) -> Any:
    """Read one setting as a user gave it.

    :param name: the field of :class:`Settings`.
    :param shown: how messages call it; default its option.
    :raises UsageError: the value is wrong.
    """
    return _READERS[name](value, shown or option_name(name))


def option_name(name: str) -> str:
    """The option of a field: ``--db-timeout`` of ``db_timeout``."""
    return f"--{name.replace('_', '-')}"


def _app(value: str) -> str:
    module, colon, attribute = value.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"APP {value!r}: must be module:attribute, like tasks:app")
    return value


def _queues(value: object, option: str) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
    names = [name.strip() for name in given]
    for name in names:
        check_name(f"{option} {value!r}: queue", name)
    return tuple(dict.fromkeys(names))


def _partitions(value: object, option: str) -> tuple[int, ...]:
    """Numbers and ranges of them: ``0,2,5-7``."""
    if not isinstance(value, str):
        return tuple(value)  # type: ignore[arg-type]
    found: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = [text.strip() for text in ((first, last) if dash else (first, first))]
        if not all(text.isascii() and text.isdecimal() and len(text) <= 4 for text in numbers):
            raise UsageError(f"{option} {value!r}: must be numbers and ranges like 0,2,5-7")
        low, high = map(int, numbers)
        if not low <= high < MAX_PARTITIONS:
            raise UsageError(f"{option} {value!r}: must be numbers from 0 to {MAX_PARTITIONS - 1}, the lower one first")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _text(value: object, option: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{option} {value!r}: must not be empty")
    return value


def _flag(value: object, option: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    known = value if isinstance(value, bool) else words.get(str(value).lower())
    if known is None:
        raise UsageError(f"{option} {value!r}: must be 1 or 0, true or false, yes or no, on or off")
    return known


def _choice(*choices: str) -> Reader:
    def read(value: object, option: str) -> str:
        if value not in choices:
            raise UsageError(f"{option} {value!r}: must be {' or '.join(choices)}")
        return str(value)

    return read


def _seconds(low: float, high: float) -> Reader:
    return lambda value, option: parse_seconds(value, option, low, high)


def _number(low: int, high: int) -> Reader:
    return lambda value, option: parse_number(value, option, low, high)


def _or_none(reader: Reader) -> Reader:
    return lambda value, option: None if value == "none" else reader(value, option)


_HOUR, _DAY = 3600.0, 86400.0

_READERS: dict[str, Reader] = {
    "processes": _number(1, MAX_PROCESSES),
    "queues": _queues,
    "partitions": _partitions,
    "dsn": _text,
    "db_timeout": _seconds(0.1, 300.0),
    "poll_interval": _seconds(0.01, _HOUR),
    "poll_only": _flag,
    "pooled": _flag,
    "lease": _seconds(MIN_LEASE, MAX_LEASE),
    "reap_interval": _seconds(0.1, _HOUR),
    "drain_timeout": _seconds(0.0, 7 * _DAY),
    "max_tasks_per_worker": _or_none(_number(1, 2**31 - 1)),
    "max_memory_per_worker": _or_none(lambda value, option: parse_bytes(value, option, 32 << 20, 1 << 50)),
    "boot_timeout": _seconds(1.0, _HOUR),
    "start_method": _choice("forkserver", "spawn"),
    "namespace": _number(-(2**31), 2**31 - 1),
    "metrics_address": parse_address,
    "log_format": _choice("text", "json"),
    "prune_older_than": _or_none(_seconds(0.0, 3650 * _DAY)),
}
