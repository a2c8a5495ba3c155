"""Bounds how many log lines of one kind are written: the first ones in full, then at a steady rate, and a count.

Pure: the clock is an argument. Used under the log handler's lock.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KINDS = 1000
"""Kinds that are remembered; beyond that the least recent one is forgotten."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float
    suppressed: int = 0


Kind = TypeVar("Kind", bound=Hashable)


class Throttle(Generic[Kind]):
    """A token bucket for each kind of line.

    :param burst: lines of a kind that may come at once.
    :param interval: seconds until one more may come.
    """

    def __init__(self, burst: int, interval: float) -> None:
        self._burst = burst
        self._interval = interval
        self._buckets: dict[Kind, _Bucket] = {}

    def admit(self, kind: Kind, now: float) -> int | None:
        """Ask for one line; None when it must not be written, else how many before it were not."""
        bucket = self._buckets.pop(kind, None)
        if bucket is None:
            bucket = _Bucket(float(self._burst), now)
            if len(self._buckets) >= KINDS:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[kind] = bucket
        bucket.tokens = min(float(self._burst), bucket.tokens + (now - bucket.filled_at) / self._interval)
        bucket.filled_at = now
        if bucket.tokens < 1.0:
            bucket.suppressed += 1
            return None
        bucket.tokens -= 1.0
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed

    def overdue(self, now: float) -> list[tuple[Kind, int]]:
        """Kinds that would be admitted by now but did not come again, with what was suppressed; told once."""
        told = []
        for kind, bucket in self._buckets.items():
            if bucket.suppressed and bucket.tokens + (now - bucket.filled_at) / self._interval >= 1.0:
                told.append((kind, bucket.suppressed))
                bucket.suppressed = 0
        return told
