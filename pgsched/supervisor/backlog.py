"""The bounded queue: claims that wait in the parent for a slot.

It is filled by the exchange no further than the slots will drain soon (``rules/demand``), and emptied into
the pool. Nobody but the parent's loop touches it, so it needs no lock and no dying process can hurt it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat

from pgsched.model import Claim

_Waiting = tuple[Claim, float]
"""A claim, and since when it waits."""


class Backlog:
    """Claims in the order in which they will be dispatched."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._clock = clock

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, claims: Iterable[Claim]) -> None:
        """Append freshly claimed tasks."""
        now = self._clock()
        self._waiting.extend(zip(claims, repeat(now)))

    def put_back(self, claims: Iterable[Claim]) -> None:
        """Return claims that a worker had not begun to the front, in their order."""
        now = self._clock()
        self._waiting.extendleft(zip(reversed(list(claims)), repeat(now)))

    def feed(self, dispatch: Callable[[Claim], bool], passing: Callable[[], bool]) -> int:
        """Dispatch from the front until a claim is refused; return how many went.

        :param passing: whether claims behind one that was refused may have better luck, if they are of another type.
        """
        waiting = self._waiting
        sent = 0
        while waiting and dispatch(waiting[0][0]):
            waiting.popleft()
            sent += 1
        if waiting and passing():
            sent += self._pass(dispatch, passing)
        return sent

    def _pass(self, dispatch: Callable[[Claim], bool], passing: Callable[[], bool]) -> int:
        """Dispatch what may pass the front, which was refused; what may not keeps its place."""
        waiting = self._waiting
        refused = {waiting[0][0].task_type}
        kept = [waiting.popleft()]
        sent = 0
        try:
            while waiting and passing():
                claim = waiting[0][0]
                if claim.task_type not in refused and dispatch(claim):
                    waiting.popleft()
                    sent += 1
                else:
                    refused.add(claim.task_type)
                    kept.append(waiting.popleft())
        finally:
            waiting.extendleft(reversed(kept))
        return sent

    def claims(self) -> list[Claim]:
        """What waits, front first."""
        return [claim for claim, _ in self._waiting]

    def oldest(self) -> float:
        """Seconds that the front has waited; 0 when nothing waits."""
        return self._clock() - self._waiting[0][1] if self._waiting else 0.0

    def take_all(self) -> list[Claim]:
        """Empty the queue and return what was in it."""
        claims = self.claims()
        self._waiting.clear()
        return claims

    def discard(self, unwanted: Callable[[Claim], bool]) -> list[Claim]:
        """Take out these claims and return them."""
        taken = [claim for claim, _ in self._waiting if unwanted(claim)]
        if taken:
            self._waiting = deque(waiting for waiting in self._waiting if not unwanted(waiting[0]))
        return taken
