"""A tenure: the time under one lease, from a supervisor's registration until the lease is given up or lost.

All duties that touch the database live inside a tenure, so that losing the lease ends all of them at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pgsched.rules.lease import Trust
from pgsched.store.store import Store
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.exchange import LeaseLostError
from pgsched.supervisor.observer import Observer

EXPIRY_INTERVAL = 1.0
"""Seconds between two looks at our trust, at most."""


class Renewal:
    """Renews the lease every third of its length.

    :param on_wanted: called with the number of processes that somebody asks for.
    """

    def __init__(
        self,
        store: Store,
        trust: Trust,
        observer: Observer,
        *,
        supervisor_id: int,
        lease: float,
        on_wanted: Callable[[int], None] = lambda wanted: None,
    ) -> None:
        self._store = store
        self._trust = trust
        self._observer = observer
        self._supervisor_id = supervisor_id
        self._lease = lease
        self._on_wanted = on_wanted

    async def turn(self) -> float:
        """Renew once.

        :raises LeaseLostError: the database has given the lease up.
        """
        started = lease_clock()
        renewed = await self._store.renew(self._supervisor_id, self._lease)
        if renewed is None:
            raise LeaseLostError
        ended = lease_clock()
        if self._trust.is_late(ended):
            left = self._trust.expires_at - ended
            self._observer.event("renewal_late", logging.WARNING, seconds=ended - started, left=left)
        self._trust.renewed(started)
        if renewed.wanted is not None:
            self._on_wanted(renewed.wanted)
        return max(self._trust.renew_due(lease_clock()), 0.0)


class Expiry:
    """Ends the tenure when our own trust in the lease has run out, whether or not the database answers."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def turn(self) -> float:
        """Look once.

        :raises LeaseLostError: the lease may be over.
        """
        now = lease_clock()
        if not self._trust.trusted(now):
            raise LeaseLostError
        # Sleep is measured by a clock that stands still while the host is suspended, and trust is not.
        return min(self._trust.expires_at - now, EXPIRY_INTERVAL)


async def race(*contenders: Coroutine[Any, Any, object]) -> None:
    """Run coroutines side by side until the first one ends; cancel the others and wait for their end.

    :raises Exception: whatever ended the first one.
    """
    tasks = [asyncio.create_task(contender) for contender in contenders]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
