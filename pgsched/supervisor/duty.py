"""The one shape of everything periodic: turn, wait, turn again; woken early, slowed down by outages.

A duty never ends by itself. A database that is away makes it wait longer each time; any other error is
reported and the duty goes on, because the others must not suffer for it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from pgsched.errors import DatabaseError, PoolError
from pgsched.rules.backoff import Backoff
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.exchange import LeaseLostError
from pgsched.supervisor.observer import Observer

CALM: Final = 30.0
"""Seconds after which a turn that fails is the first of a new row of failures: it was well for a while, and one that
listens never ends otherwise."""


class Duty:
    """Calls ``turn`` again and again; ``turn`` returns the seconds to wait before the next one.

    :param on_turn: called after each turn, whether or not it succeeded.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], Awaitable[float]],
        observer: Observer,
        *,
        sleep: Callable[[float], Awaitable[None]] | None = None,
        on_turn: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self.name = name
        self._turn = turn
        self._observer = observer
        self._wake = asyncio.Event()
        self._sleep = sleep or self._sleep_or_wake
        self._on_turn = on_turn
        self._clock = clock
        self._backoff = Backoff(base=0.1, cap=5.0)

    def wake(self) -> None:
        """Take the next turn now."""
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled.

        :raises LeaseLostError, PoolError: passed on, because they end more than this duty.
        """
        while True:
            self._wake.clear()
            pause, well = await self._try()
            self._on_turn()
            # What wakes a duty says nothing about whether the database is back.
            await (self._sleep(pause) if well else asyncio.sleep(pause))

    async def _sleep_or_wake(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _try(self) -> tuple[float, bool]:
        began = self._clock()
        try:
            pause = await self._turn()
        except (LeaseLostError, PoolError):
            raise
        except DatabaseError:
            # The store has logged the outage; a line from each duty would bury it.
            return self._failed(began), False
        except Exception as error:
            self._observer.event("duty_failed", logging.ERROR, duty=self.name, error=repr(error), exc_info=True)
            return self._failed(began), False
        self._backoff.succeeded()
        return pause, True

    def _failed(self, began: float) -> float:
        if self._clock() - began >= CALM:
            self._backoff.succeeded()
        return self._backoff.failed(random.random)
