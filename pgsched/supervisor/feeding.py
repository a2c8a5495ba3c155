"""Feeding: claims that wait go into slots as soon as there is room, and no further ahead than is known to be short.

What may be sent ahead, ``rules/demand`` says; which slot gets it, the pool. Runs in the supervisor's loop.
"""

import asyncio
from collections.abc import Callable

from pgsched.model import Claim
from pgsched.pool.pool import Pool
from pgsched.rules import demand
from pgsched.supervisor.backlog import Backlog


class Feeder:
    """Empties the backlog into the pool.

    :param may: whether what waits is still ours beyond doubt, and nobody has asked us to stop.
    :param fed: called each time that as much as possible has gone into slots.
    """

    def __init__(
        self,
        pool: Pool,
        backlog: Backlog,
        durations: demand.Durations,
        *,
        may: Callable[[], bool],
        fed: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._backlog = backlog
        self._durations = durations
        self._may = may
        self._fed = fed
        self._called = False

    def soon(self) -> None:
        """Feed at the end of this turn of the loop: once, however many ask for it."""
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self.feed)

    def feed(self) -> None:
        """Feed now."""
        self._called = False
        if self._may():
            # While the app is replaced, a worker that is idle may not know what is first, but what comes behind.
            self._backlog.feed(self._dispatch, lambda: self._pool.free() > 0)
            self._backlog.put_back(self._pool.flush())
            self._fed()

    def occupied(self) -> int:
        """Slots that will not be free soon."""
        running = self._pool.running()
        return demand.occupied(self._durations, ((each.claim.task_type, each.seconds) for each in running))

    def _dispatch(self, claim: Claim) -> bool:
        ahead = demand.ahead(self._durations, claim.task_type, len(claim.payload))
        return self._pool.dispatch(claim, ahead, demand.AHEAD_SECONDS)
