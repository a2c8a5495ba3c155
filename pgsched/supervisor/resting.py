"""Between two turns of the exchange: how long to wait, and what ends the wait.

A turn costs a commit, so what ends is given time to gather; a slot without work ends that at once. A supervisor that
has nothing to do sleeps until a hint, the next due row or the poll interval; while rows come thick it declines hints
and looks by itself. Runs in the supervisor's loop. It asks the database nothing.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from pgsched.model import Verdict
from pgsched.rules.latecomers import Latecomers
from pgsched.rules.wakeups import Wakeups
from pgsched.supervisor.survey import Survey

GATHER: Final = 0.004
LONGEST_GATHER: Final = 0.02
"""Seconds that verdicts are given to gather while no slot is starving: a commit costs as much for one as for fifty. Of
tasks that take longer they may wait as long as one of those took, within these bounds."""
PLENTY: Final = 500
"""Verdicts that are worth a commit by themselves. To read more reports first would let the server rest, and then the
slots, because what they are to do next comes back with the same round trip. Looked at when a wait begins."""
PREFERENCE: Final = 0.002
"""Seconds after a claim in which no scan gets in the way of the next hint, nor of the task that has just begun."""
LOOK: Final = 0.005
"""Seconds between two looks of a supervisor that is not woken although a slot starves."""


class Rest:
    """Owns what wakes the exchange.

    :param starving: whether a slot has nothing to do, and nothing waits for one.
    :param poll_interval: seconds; the longest rest.
    :param listens: whether hints reach us at all.
    """

    def __init__(
        self,
        survey: Survey,
        *,
        starving: Callable[[], bool],
        poll_interval: float,
        listens: bool,
        clock: Callable[[], float],
    ) -> None:
        self._survey = survey
        self._is_starving = starving
        self._poll_interval = poll_interval
        self._listens = listens
        self._clock = clock
        self._wakeups = Wakeups()
        self.latecomers = Latecomers()
        self._wake = asyncio.Event()
        self._starved = asyncio.Event()
        self._looked_at = self._found_at = -math.inf

    def begin(self) -> None:
        """Start over under a new lease, whose holder has not asked for hints yet."""
        self._wakeups = Wakeups()
        self.latecomers = Latecomers()

    def wake(self) -> None:
        """A slot or a row may be waiting: take the next turn now."""
        self._wake.set()

    def woken(self) -> None:
        """A turn begins; what comes from now on is for the next one."""
        self._wake.clear()

    def fed(self) -> None:
        """What waited has gone into slots, as far as there was room and there were claims."""
        if self.starving():
            self._starved.set()

    def notified(self, sender: int, *, served: bool = False) -> None:
        """Somebody queued rows. Meant for another supervisor, it says nothing that our own looks do not.

        :param served: a claim is under way already; nobody needs to wake up for this hint.
        """
        if self._wakeups.asked:
            now = self._clock()
            self._wakeups.hinted(sender, now)
            self._survey.woken(now)
            if not served:
                self._wake.set()

    def served(self) -> None:
        """What such a claim has brought is in the books; the scan that follows each claim will do a little later."""
        asyncio.get_running_loop().call_later(PREFERENCE, self._wake.set)

    def found(self) -> None:
        """Rows were claimed."""
        self._found_at = now = self._clock()
        self._wakeups.found(now)

    def lost(self) -> None:
        """The database failed; what it was told may be forgotten."""
        self._wakeups.lost()

    def expecting(self) -> bool:
        """Whether nothing is to be done before a hint comes: then the groups that are known are where its rows are."""
        return bool(self._wakeups.asked) and not self._survey.incomplete and self.starving()

    def preferring(self) -> bool:
        """Whether a claim was so lately that a scan would be in the way."""
        return self._clock() - self._found_at < PREFERENCE

    def starving(self) -> bool:
        """Whether a slot has nothing to do, and nothing waits for one."""
        starving = self._is_starving()
        if starving:
            self._wakeups.starving(self._clock())
        return starving

    def wanted(self) -> bool | None:
        """What the database is to be told about hints: to send them, or not to; None: what it was told still holds.

        They are asked for only when about to sleep, because each one costs the producers' commits.
        """
        if not self._listens:
            return None
        wanted = self._wakeups.wanted(self._clock(), starving=self.starving())
        return None if wanted is self._wakeups.asked else wanted

    def told(self, wanted: bool) -> None:
        """The database was told."""
        now = self._clock()
        self._wakeups.told(wanted, now)
        self.latecomers.told(wanted, now)
        # A row that was committed before the flag was seen brought no hint.
        self._survey.doubt()

    def pause(self) -> float:
        """Seconds until the next turn, when nothing is left to be written."""
        if not self.starving():
            return self._poll_interval
        now = self._clock()
        wait = min(self._survey.next_due(now), self._poll_interval)
        if self._survey.incomplete:
            wait = min(wait, max(self._survey.scan_in(now), self._found_at + PREFERENCE - now))
        else:
            wait = min(wait, self.latecomers.look_in(now))
        if self._wakeups.streaming(now):
            wait = min(wait, LOOK)
        elif self._listens and not self._wakeups.asked:
            wait = min(wait, max(self._survey.rescan_in(now), LOOK))
        return max(wait, 0.0)

    async def sleep(self, pause: float, waiting: Sequence[Verdict]) -> None:
        """Wait until the next turn is worth its commit.

        :param pause: seconds at most.
        :param waiting: what it will write.
        """
        # With a pause, nothing may be begun just now: not to wait would keep everybody else from running.
        if pause <= 0 and len(waiting) >= PLENTY:
            return
        took = waiting[0].seconds if waiting else 0.0
        if not self._wake.is_set():
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                self._look()
                return
        if not self.starving():
            await self._gather(took)
        now = self._clock()
        if self.starving() and self._wakeups.streaming(now) and self._survey.next_due(now) > 0:
            # What ends and what is found go into one round trip.
            await asyncio.sleep(self._looked_at + LOOK - now)
            self._look()

    async def _gather(self, took: float) -> None:
        self._starved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(took, GATHER), LONGEST_GATHER)):
                await self._starved.wait()

    def _look(self) -> None:
        """Look for rows that nobody told of."""
        self._looked_at = now = self._clock()
        if self._survey.next_due(now) <= 0:
            return
        if self._wakeups.streaming(now) or self._survey.blind:
            self._survey.woken(now)
        else:
            self._survey.doubt()
