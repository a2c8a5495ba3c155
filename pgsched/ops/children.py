"""The labelled series of the supervisor's metrics, and the room that each gets in its file before it is made.

prometheus_client grows a file by truncating it, which leaves a hole: a write into that on a full disk is a SIGBUS. So
the blocks are reserved first, and where there are none, what has no series yet is not counted. Runs in the parent's
loop.
"""

import sys
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import Counter, Gauge

from pgsched.ops.directory import RESERVED, reserve

MARGIN = 4 * 1024
"""Bytes that one more series takes at most: a name has up to 64 characters, and one of them up to 12 bytes there."""

Child = TypeVar("Child", Counter, Gauge)


class Room:
    """The blocks of a file that prometheus_client writes, and nobody else.

    :raises OSError: there is no room even for the beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # What the file's size says may be a hole, or what an attempt to reserve more has left.
        self._reserved = RESERVED
        reserve(path, RESERVED)

    def make(self) -> bool:
        """Make sure that one more series fits; False where the file cannot grow."""
        try:
            with open(self._path, "rb") as file:
                used = int.from_bytes(file.read(4), sys.byteorder)
            if used + MARGIN > self._reserved:
                reserve(self._path, self._reserved * 2)
                self._reserved *= 2
        except OSError:
            return False
        return True


class Children(dict[tuple[str, ...], Child], Generic[Child]):
    """The labelled children of a metric: looking one up in prometheus_client costs as much as counting."""

    def __init__(self, metric: Child, room: Room) -> None:
        super().__init__()
        self._metric: Child = metric
        self._room = room
        self.labelled = bool(metric._labelnames)

    def __missing__(self, labels: tuple[str, ...]) -> Child:
        if not self._room.make():
            # Not kept: there may be room the next time.
            nothing: Any = Nothing()
            return nothing  # type: ignore[no-any-return]
        child: Child = self._metric.labels(*labels) if labels else self._metric
        self[labels] = child
        return child


class Nothing:
    """Counts nothing: there is no room. A task is worth more than its metrics."""

    def inc(self, amount: float = 1.0) -> None:
        """Do nothing."""

    def set(self, value: float) -> None:
        """Do nothing."""
