"""The reaper: takes over the claims of supervisors that died, and finds rows that are ours by mistake.

Every supervisor reaps; there is no leader. A reap is one more outcome ("lost") and goes through the same rules
as any other, so it needs no free slot. Runs in the supervisor's loop under a lease of its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pgsched.errors import DatabaseError
from pgsched.model import Claim, Identity, Outcome
from pgsched.rules.verdict import lost
from pgsched.store.store import Store
from pgsched.supervisor.exchange import Exchange
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.identity import is_gone
from pgsched.supervisor.observer import Observer

SUSPICIOUS = 5.0
"""Seconds between two turns at most while rows may be ours by mistake."""
BATCH = 500
"""Claims that one statement takes over at most, so that it stays far below any statement_timeout."""


class Reaper:
    """One turn looks at the neighbours on this host, takes over expired claims, and releases strays."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        holdings: Holdings,
        exchange: Exchange,
        observer: Observer,
        *,
        supervisor_id: int,
        interval: float,
        on_outcome: Callable[[Claim, Outcome], None],
    ) -> None:
        self._store = store
        self._identity = identity
        self._holdings = holdings
        self._exchange = exchange
        self._observer = observer
        self._supervisor_id = supervisor_id
        self._interval = interval
        self._on_outcome = on_outcome

    async def turn(self) -> float:
        """Reap everything there is; return the reap interval."""
        self._exchange.suspicion.clear()
        await self._bury_neighbours()
        if self._exchange.strays_suspected:
            await self._release_strays()
        while True:
            claims = await self._reap()
            self._take(claims)
            if len(claims) < BATCH:
                return min(self._interval, SUSPICIOUS) if self._exchange.strays_suspected else self._interval

    async def sleep(self, pause: float) -> None:
        """Wait until the next turn, or until rows may be ours by mistake: the interval may be an hour."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._exchange.suspicion.wait()

    async def _reap(self) -> list[Claim]:
        try:
            return await self._store.reap(self._supervisor_id, BATCH)
        except DatabaseError:
            self._exchange.suspect_strays()
            raise

    def _take(self, claims: list[Claim]) -> None:
        self._holdings.add(claims)
        self._observer.reaped(claims)
        for claim in claims:
            self._on_outcome(claim, lost())

    async def _bury_neighbours(self) -> None:
        """End at once the leases of supervisors of this host whose process is gone."""
        me = self._identity
        neighbours = await self._store.neighbours(me.boot_id, me.pid_namespace)
        dead = [
            supervisor
            for supervisor, pid, ticks in neighbours
            if supervisor != self._supervisor_id and is_gone(pid, ticks)
        ]
        if dead:
            await self._store.expire(dead)

    async def _release_strays(self) -> None:
        # With no claim in flight, every row under our name that we do not hold comes from a lost reply.
        async with self._exchange.quiet:
            began = self._exchange.clock()
            self._take(await self._store.strays(self._supervisor_id, self._holdings.ids()))
        self._exchange.strays_released(began)
