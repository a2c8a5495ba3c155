"""When a worker that died may be replaced, and when the pool should give up.

Counts only deaths that no task answers for: a worker that cannot boot, or that leaves while it is idle. A
death under a task costs that task an attempt, which ends by itself, so its slot is filled at once and nothing
is counted here. One object serves a whole pool; pure, the clock is an argument.
"""

from typing import NamedTuple

_CALM = 5
"""So many times ``within`` without a counted death end a run of them, however short the lives were."""


class Delay(NamedTuple):
    """Fill the slot after this many seconds."""

    seconds: float


class GiveUp(NamedTuple):
    """Fill no slot again: the workers die as fast as they are started."""

    deaths: int
    """Steps of the run of deaths, this one included."""


class Intensity:
    """A run of deaths: growing delays, and an end.

    Deaths that come while a delay is running belong to the same step of the run, so that an operator who
    kills all workers at once does not exhaust the limit. Booting proves nothing, and a task finished neither:
    only a worker that was ready for ``within`` seconds, or five times as long without any counted death,
    starts a new run. With the defaults a worker that leaves a second after it was ready is started seven
    times in 14 seconds, and then the service ends.

    :param limit: steps that are answered with a delay; the next one is answered with :class:`GiveUp`.
    :param within: seconds of readiness that end a run.
    :param base: seconds; the first delay. It doubles with each step.
    :param cap: seconds; the longest delay.
    :param killed_cap: seconds; the longest delay after deaths by SIGKILL from outside.
    """

    def __init__(
        self,
        limit: int = 6,
        within: float = 60.0,
        base: float = 0.1,
        cap: float = 10.0,
        killed_cap: float = 1.0,
    ) -> None:
        self._limit = limit
        self._within = within
        self._base = base
        self._cap = cap
        self._killed_cap = killed_cap
        self._run = 0
        self._killed = 0
        self._next = float("-inf")

    def died(self, now: float, lived: float = 0.0, killed: bool = False) -> Delay | GiveUp:
        """Count a death under no task and say when the slot may be filled again.

        :param now: monotonic seconds.
        :param lived: seconds for which the worker was ready; 0 when it never was.
        :param killed: a ready worker was ended by a SIGKILL that the pool did not send: an operator's, or the
            kernel's out of memory. The delays grow then too, but no further than ``killed_cap``, and the pool
            never gives up: the worker has no fault that an end of the service could cure.
        """
        if now < self._next:
            return Delay(self._next - now)
        if lived >= self._within or now - self._next >= _CALM * self._within:
            self._run = self._killed = 0
        if killed:
            self._killed += 1
            seconds = min(self._killed_cap, self._step(self._killed))
        else:
            self._run += 1
            if self._run > self._limit:
                return GiveUp(self._run)
            seconds = min(self._cap, self._step(self._run))
        self._next = now + seconds
        return Delay(seconds)

    def _step(self, number: int) -> float:
        return self._base * 2.0 ** min(number - 1, 60)
