"""The last words: what a supervisor that stops still knows is written, and its lease is given up.

Neither raises: whatever cannot be said, others find out when the lease has run out.
"""

import asyncio
import logging
import random

from pgsched.errors import DatabaseError, LockedError
from pgsched.rules.backoff import Backoff
from pgsched.store.store import Store
from pgsched.supervisor.exchange import Exchange, LeaseLostError
from pgsched.supervisor.observer import Observer


async def settle_rest(exchange: Exchange, observer: Observer, attempts: int, patience: float) -> None:
    """Claim nothing more, and settle until nothing is left or the lease is lost, or until it seems hopeless.

    :param attempts: how often at least; where nobody listens they are over at once,
    :param patience: so it goes on for so many seconds in any case: a server that restarts is back soon.
    """
    exchange.conclude()
    backoff = Backoff(base=0.1, cap=1.0)
    until = exchange.clock() + patience
    reason = "there was no time"
    try:
        while exchange.unsettled() and (backoff.failures < attempts or exchange.clock() < until):
            try:
                await exchange.turn()
            except DatabaseError as error:
                reason = str(error)
                pause = backoff.failed(random.random)
                # It has waited long enough for a lock, and tries others next.
                await asyncio.sleep(0.0 if isinstance(error, LockedError) else pause)
    except LeaseLostError:
        reason = "the lease is lost"
    finally:
        # A second signal may cut it off anywhere.
        if exchange.unsettled():
            observer.event("not_settled", logging.WARNING, tasks=exchange.unsettled(), error=reason)


async def leave(store: Store, observer: Observer, supervisor_id: int, attempts: int) -> None:
    """Give the lease up; to be called when nothing is held any more.

    :param attempts: the first may only find out that a connection died long ago.
    """
    for attempt in range(1, attempts + 1):
        try:
            await store.strays(supervisor_id, [])
            await store.deregister(supervisor_id)
            return
        except DatabaseError as error:
            if attempt == attempts:
                observer.event("not_deregistered", logging.WARNING, error=str(error))
