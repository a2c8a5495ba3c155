"""Verdicts that are not known to be written, and which of them the next settle takes. Pure.

What was sent and not answered is sent again whole: it may have been committed. What the database did not finish in
time goes behind everything else and is tried again by itself and in halves, now and then: whoever holds a lock on one
of those rows, for as long as he likes, is to delay no other row's verdict and no claim.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from pgsched.model import Verdict
from pgsched.rules.backoff import Backoff

BATCH: Final = 1500
"""Verdicts that one settle takes at most."""
SIZE: Final = 8 * 1024 * 1024
"""Characters of results and failures that one settle takes at most, unless one verdict has more."""


class Parcel(NamedTuple):
    """What one settle takes."""

    verdicts: list[Verdict]
    resent: bool = False
    """Whether an earlier settle may have written them."""
    alone: bool = False
    """Whether it may well fail, and with it whatever is in the same transaction."""


NOTHING: Final = Parcel([])


class Unwritten:
    """The verdicts of one supervisor, in the order in which they came."""

    def __init__(self, clock: Callable[[], float], dice: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._dice = dice
        self.pending: list[Verdict] = []
        """Never sent."""
        self._sent = NOTHING
        """What was taken last, until it is answered."""
        self._late: deque[Verdict] = deque()
        self._most = BATCH
        """Late ones that are tried at once."""
        self._due = 0.0
        self._others_first = False
        self._heard = False
        """Whether the database has answered anything since a settle was late last."""
        self._backoff = Backoff(base=5.0, cap=60.0)
        self.hurried = False
        """Whether there is no later."""

    def __len__(self) -> int:
        return len(self.pending) + len(self._sent.verdicts) + len(self._late)

    def pause(self) -> float:
        """Seconds until there is something to take."""
        if self.pending or self._sent.verdicts or self.hurried:
            return 0.0
        return max(self._due - self._clock(), 0.0)

    def take(self) -> Parcel:
        """What the next settle takes: the same until it is answered, or overdue."""
        if self._sent.verdicts:
            return self._sent
        late = self._late and (not self.pending if self.hurried else self._clock() >= self._due)
        if late and (self.hurried or not self._others_first):
            count = min(self._most, len(self._late))
            self._sent = Parcel([self._late.popleft() for _ in range(count)], resent=True, alone=True)
            return self._sent
        self._others_first = False
        count = _fitting(self.pending)
        taken, self.pending = self.pending[:count], self.pending[count:]
        self._sent = Parcel(taken, resent=True)
        return Parcel(taken)

    def answered(self) -> None:
        """The database has answered, and with that what was taken."""
        if self._sent.alone:
            self._most = min(2 * self._most, BATCH)
            self._backoff.succeeded()
            self._due = 0.0
        self._heard = True
        self._sent = NOTHING

    def overdue(self) -> None:
        """The database has not finished in time what was taken."""
        verdicts, _, alone = self._sent
        if not verdicts:
            return
        self._late.extend(verdicts)
        self._most = max(len(verdicts) // 2, 1)
        self._others_first = True
        # Else the database may be away, and then it is not for these to wait longer than others.
        if alone and self._heard and len(verdicts) == 1:
            self._due = self._clock() + self._backoff.failed(self._dice)
        self._heard = False
        self._sent = NOTHING

    def forget(self) -> list[Verdict]:
        """Drop every verdict and return them."""
        dropped = [*self._sent.verdicts, *self._late, *self.pending]
        self.pending, self._sent = [], NOTHING
        self._late.clear()
        self._most, self._due = BATCH, 0.0
        self._backoff.succeeded()
        return dropped


def _fitting(verdicts: list[Verdict]) -> int:
    """How many of the first ones one settle takes."""
    batch = verdicts[:BATCH]
    sizes = [_size(verdict) for verdict in batch]
    if sum(sizes) <= SIZE:
        return len(batch)
    room = SIZE
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return max(count, 1)
    return len(batch)


def _size(verdict: Verdict) -> int:
    size = len(verdict.result or "")
    failure = verdict.failure
    if failure is not None:
        texts = (failure.error, failure.traceback, failure.stderr, failure.stack)
        size += sum(len(text) for text in texts if text is not None)
    return size
