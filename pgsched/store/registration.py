"""A supervisor's row: entered, renewed, kept true, given up; and said to be over before another is entered.

In a database that was set back to an earlier state somebody else may have our id by now, so each statement also says
which process it means. Runs in the supervisor's loop.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pgsched.model import Identity
from pgsched.store.arrays import numbers, texts


class Renewed(NamedTuple):
    """What a renewal tells."""

    wanted: int | None
    """Processes that somebody asks for, until it is announced that they are there."""


class Registration:
    """The registrations of one process, one after the other.

    :param ask: runs a statement, by its name, with these parameters; returns its rows.
    """

    def __init__(self, ask: Callable[..., Awaitable[list[Any]]]) -> None:
        self._ask = ask
        self._me: str | None = None
        """What our row is known by."""
        self._former: int | None = None
        """Our last registration, while we have not given it up."""
        self._lease_over = 0.0
        """When its lease was over at the latest, if it was not renewed since; on the clock that runs in sleep too."""

    async def register(self, identity: Identity, lease: float) -> int:
        """See ``Store.register``."""
        me = identity
        place = (me.host, me.boot_id, me.pid_namespace, me.pid, me.started_ticks)
        serves = (me.processes, texts(me.queues), texts(me.task_types), me.version)
        bound = numbers(me.partitions)
        self._me = " ".join(map(str, place[1:]))
        if self._former is not None:
            over = max(_now() - self._lease_over, 0.0)
            await self._ask("surrender", self._former, *place, over)
        started = _now()
        rows = await self._ask("register", *place, *serves, lease, bound)
        self._former, self._lease_over = int(rows[0][0]), started + lease
        return self._former

    async def renew(self, supervisor_id: int, lease: float) -> Renewed | None:
        """See ``Store.renew``."""
        started = _now()
        rows = await self._ask("renew", supervisor_id, lease, self._me)
        if not rows:
            return None
        self._lease_over = started + lease
        return Renewed(*rows[0])

    async def announce(self, supervisor_id: int, identity: Identity, taken: int | None) -> None:
        """See ``Store.announce``."""
        serves = (identity.processes, texts(identity.task_types))
        await self._ask("announce", supervisor_id, *serves, taken, self._me)

    async def deregister(self, supervisor_id: int) -> None:
        """See ``Store.deregister``."""
        await self._ask("deregister", supervisor_id, self._me)
        self._former = None


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
