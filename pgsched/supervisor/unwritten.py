"""Verdicts that are not known to be written, and which of them the next settle takes. Pure.

What was sent and not answered is sent again whole: it may have been committed. What had to wait for a lock goes behind
everything else and is tried again by itself and in halves, and what is alone to blame now and then: whoever keeps a row
locked, for as long as he likes, is to delay no other row's verdict and no claim for more than a second now and then.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from pgsched.model import Failure, Verdict
from pgsched.rules.backoff import Backoff

BATCH: Final = 1500
"""Verdicts that one settle takes at most."""
SIZE: Final = 8 * 1024 * 1024
"""Characters of results and failures that one settle takes at most, unless one verdict has more."""
LONGEST: Final = 30.0
"""Seconds between two tries of what is known to be locked, at most."""


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
        """They had to wait for a lock, or were among others of which one had to."""
        self._most = BATCH
        """Late ones that are tried at once."""
        self._vain = 0
        """Single ones that were tried in vain since one was written."""
        self._due = 0.0
        self._others_first = False
        self._backoff = Backoff(base=1.0, cap=LONGEST)
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
        """What the next settle takes: the same until it is answered, or was locked."""
        if self._sent.verdicts:
            return self._sent
        late = self._late and (not self.pending if self.hurried else self._clock() >= self._due)
        if late and (self.hurried or not self._others_first):
            count = _fitting(list(islice(self._late, self._most)))
            self._sent = Parcel([self._late.popleft() for _ in range(count)], resent=True, alone=True)
            return self._sent
        self._others_first = False
        count = _fitting(self.pending[:BATCH])
        taken, self.pending = self.pending[:count], self.pending[count:]
        self._sent = Parcel(taken, resent=True)
        return Parcel(taken)

    def answered(self, unsure: Sequence[Verdict] = ()) -> None:
        """The database has answered, and with that what was taken.

        :param unsure: of these it could not say whether they are written.
        """
        if unsure:
            self._sent = Parcel(list(unsure))
            self.locked()
            return
        if self._sent.alone:
            self._most = min(2 * self._most, BATCH)
            self._vain = 0
            self._due = 0.0
            self._backoff.succeeded()
        self._sent = NOTHING

    def locked(self) -> None:
        """What was taken had to wait for a lock, and is not written."""
        verdicts = self._sent.verdicts
        if not verdicts:
            return
        self._sent = NOTHING
        self._most = max(len(verdicts) // 2, 1)
        self._others_first = True
        if len(verdicts) > 1:
            # Most of them are not to blame.
            self._late.extendleft(reversed(verdicts))
            self._vain, self._due = 0, 0.0
            return
        self._late.extend(verdicts)
        self._vain += 1
        if self._vain >= len(self._late):
            self._due = self._clock() + self._backoff.failed(self._dice)

    def forget(self) -> list[Verdict]:
        """Drop every verdict and return them."""
        dropped = [*self._sent.verdicts, *self._late, *self.pending]
        self.pending, self._sent = [], NOTHING
        self._late.clear()
        self._most, self._vain, self._due = BATCH, 0, 0.0
        self._backoff.succeeded()
        return dropped


def _fitting(verdicts: list[Verdict]) -> int:
    """How many of the first ones one settle has room for."""
    # Most have no failure, and this is done for each of them.
    sizes = [len(each.result or "") + (_size(each.failure) if each.failure else 0) for each in verdicts]
    if sum(sizes) <= SIZE:
        return len(verdicts)
    room = SIZE
    for count, size in enumerate(sizes):
        room -= size
        if room < 0:
            return max(count, 1)
    return len(verdicts)


def _size(failure: Failure) -> int:
    texts = (failure.error, failure.traceback, failure.stderr, failure.stack)
    return sum(len(text) for text in texts if text is not None)
