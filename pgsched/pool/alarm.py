"""One timer of the loop that can be set earlier as often as one likes: the next moment at which the pool must look."""

import asyncio
import math
import time
from collections.abc import Callable


class Alarm:
    """Calls back once, at the earliest moment asked for.

    :param ring: called in the loop.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self.at = math.inf
        """When it rings, monotonic."""

    def by(self, when: float) -> None:
        """Ring at this monotonic second, or before."""
        if when < self.at:
            self.cancel()
            self.at = when
            self._handle = asyncio.get_running_loop().call_later(max(when - time.monotonic(), 0.0), self._go)

    def cancel(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.at = math.inf

    def _go(self) -> None:
        self._handle = None
        self.at = math.inf
        self._ring()
