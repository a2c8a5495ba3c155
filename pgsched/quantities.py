"""Readers of values that users write: numbers, names, durations, sizes, addresses; and the CPUs there are.

Each reader takes the name under which its value is known to the user and refuses with one line that names it,
the value and the range. Used by ``config``, ``app`` and ``cli`` in every process. Only :func:`available_cpus`
does I/O.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pgsched.errors import UsageError

_UNITS_OF_TIME = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS_OF_SIZE = {"": 1.0, "B": 1.0} | {
    letter + suffix: 1024.0**power
    for power, letters in enumerate(("Kk", "Mm", "Gg", "Tt"), 1)
    for letter in letters
    for suffix in ("", "B", "iB", "b", "ib")
}
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+) ?([A-Za-z]*)", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_LONGEST = 3650 * 86400.0
_NAME_LENGTH = 64


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int
    """0: any free one."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_number(value: object, option: str, low: int, high: int) -> int:
    """Read a whole number.

    :raises UsageError: it is none, or not from ``low`` to ``high``.
    """
    number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise UsageError(f"{option} {_shown(value)}: must be a whole number from {low} to {high}")
    return number


def parse_priority(value: object, option: str = "priority") -> int:
    """Read a priority, which is a smallint in the database.

    :raises UsageError: it is none.
    """
    return parse_number(value, option, -32768, 32767)


def parse_seconds(value: object, option: str = "duration", low: float = 0.0, high: float = _LONGEST) -> float:
    """Read a duration: seconds, or text like "1.5", "250ms", "90s", "5m", "2h", "7d", "1w".

    :raises UsageError: it is none, or not from ``low`` to ``high``.
    """
    seconds = _quantity(value, _UNITS_OF_TIME)
    if not low <= seconds <= high:
        raise UsageError(
            f"{option} {_shown(value)}: must be from {format_seconds(low)} to {format_seconds(high)}, "
            "in seconds or like 250ms, 90s, 5m, 2h, 7d"
        )
    return seconds


def parse_bytes(value: object, option: str = "size", low: int = 0, high: int = 1 << 50) -> int:
    """Read a size: bytes, or text like "64KiB", "512MiB", "1g"; every unit is a power of 1024.

    :raises UsageError: it is none, or not from ``low`` to ``high``.
    """
    size = _quantity(value, _UNITS_OF_SIZE)
    if not low <= size <= high:
        raise UsageError(
            f"{option} {_shown(value)}: must be from {format_bytes(low)} to {format_bytes(high)}, "
            "in bytes or like 64KiB, 512MiB, 2GiB"
        )
    return int(size)


def parse_address(value: object, option: str = "address") -> Address | None:
    """Read "host:port", with an IPv6 host in brackets; "none" is None.

    :raises UsageError: it is no address, or the port is not from 0 to 65535.
    """
    if isinstance(value, Address):
        return value
    if value == "none":
        return None
    host, colon, port = (value if isinstance(value, str) else "").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not bare or bracketed != (":" in bare) or set(bare) & set(" []/@"):
        raise UsageError(f"{option} {_shown(value)}: must be HOST:PORT, [IPV6]:PORT or none")
    return Address(bare, parse_number(port, f"{option} {_shown(value)}: port", 0, 65535))


def check_name(what: str, value: object) -> str:
    """Return a name that the database can hold: 1 to 64 characters, printable, no space around it.

    :raises UsageError: it is not.
    """
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise UsageError(f"{what} {_shown(value)}: must be printable text without spaces around it")
    if len(value) > _NAME_LENGTH:
        raise UsageError(f"{what} {_shown(value)}: must have at most {_NAME_LENGTH} characters, not {len(value)}")
    return value


def format_seconds(seconds: float) -> str:
    """Write a duration so that :func:`parse_seconds` reads it: "250ms", "90s", "7d"."""
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _UNITS_OF_TIME[unit] == 0:
            return f"{seconds / _UNITS_OF_TIME[unit]:.0f}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


def format_bytes(size: int) -> str:
    """Write a size so that :func:`parse_bytes` reads it: "512MiB"."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{size}B"


def available_cpus(root: str | Path = "/") -> int:
    """How many CPUs this process may use: its affinity, or the cgroups' quota, rounded up, where that is less.

    :param root: where ``proc`` and ``sys`` are; another directory only in tests.
    """
    cpus = float(len(os.sched_getaffinity(0)))
    return max(1, math.ceil(min([cpus, *_quotas(Path(root))])))


def _quotas(root: Path) -> Iterator[float]:
    """The CPU quota of each cgroup that this process is in: version 2 or 1, its own and all above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        # Inside a container the path may be one that only the host can see; then the mount itself is the group.
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            yield from _quota(directory, version=1 if controllers else 2)
            if directory == mount:
                break


def _quota(directory: Path, version: int) -> Iterator[float]:
    try:
        if version == 2:
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text()
            period = (directory / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return


def _quantity(value: object, units: Mapping[str, float]) -> float:
    """The number that was written, or NaN, which lies in no range."""
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        return float(match[1]) * units.get(match[2], math.nan) if match else math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if abs(value) < 1e300 else math.nan


def _shown(value: object) -> str:
    """One short line of whatever was given; an empty text must be visible as one."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."
