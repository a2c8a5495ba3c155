"""What a scenario is: a function that gets a `Bench`, measures, and returns figures. Values only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.server import Server

__all__ = ["Bench", "Result", "Scenario", "Server", "Unavailable"]


class Result(NamedTuple):
    """One figure of one run."""

    name: str
    value: float | None
    """None: it cannot be had here, such as processor time of a server on another host."""
    unit: str
    series: Sequence[tuple[float, float]] = ()
    """How it came about, where that is to be drawn: seconds since the beginning, and the value then."""


class Unavailable(Exception):
    """A scenario cannot run here, because something that it needs is not installed; says what."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a scenario gets; a new one for every repetition."""

    dsn: str
    """Leads to a schema of the benchmark's own, migrated, with no rows."""
    quick: bool
    """Small sizes: only to see that it runs."""
    processes: int
    params: Mapping[str, float]
    """Of tasks, rate, seconds and minutes those that were given."""
    scratch: Path
    """A directory that is removed afterwards."""
    progress: Callable[[str], None]
    """Says what is going on, in a line that the next one overwrites."""
    server: Server


Scenario = Callable[[Bench], list[Result]]
