"""A claim that stands by while the exchange sleeps, so that a hint only has to send it.

To wake up, to plan and to write a claim takes as long as the server needs for it, and more where the server is given a
colder processor meanwhile. So a hint sends what was prepared, and when the answer comes the task begins; only then, or
where anything is not as it should be, does the exchange wake up. Runs in the supervisor's loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import NamedTuple

from pgsched.model import Want
from pgsched.store.store import Exchanged, Readied, Store
from pgsched.supervisor.clock import lease_clock


class Arrived(NamedTuple):
    """What was sent, and the answer."""

    wants: list[Want]
    total: int
    answer: Exchanged
    seconds: float


class Standby:
    """Owns the claim that is ready to be sent, the one that was sent, and the lock under which claims are made.

    To enter it means that no claim is in flight, and that none can be sent until it is left.

    :param collect: waits for and takes in the answer to a claim that was sent at this time.
    :param answered: called when the answer has come.
    """

    def __init__(
        self, store: Store, collect: Callable[[Readied, float], Awaitable[None]], answered: Callable[[], None]
    ) -> None:
        self._store = store
        self._collect = collect
        self._answered = answered
        self._lock = asyncio.Lock()
        self._readied: Readied | None = None
        self._sent: tuple[Readied, float] | None = None

    def begin(self) -> None:
        """Start over under a new lease: what was sent under the old one brings nothing."""
        self._readied = self._sent = None

    def ready(self, readied: Readied) -> None:
        """Let this one stand by."""
        self._readied = readied

    def stand_down(self) -> None:
        """What is known has changed: send nothing."""
        self._readied = None

    def send(self) -> bool:
        """Send what stands by, if anything does; its answer is to be expected."""
        readied, self._readied = self._readied, None
        if readied is None or self._sent is not None or self._lock.locked():
            return False
        sent = readied, lease_clock()
        if self._store.send(readied, self._answered):
            self._sent = sent
        return self._sent is not None

    def arrived(self) -> Arrived | None:
        """Take the answer, if all is well and nobody has entered meanwhile; else whoever enters has to do with it."""
        if self._sent is None:
            return None
        answer = self._store.arrived()
        if answer is None:
            return None
        (readied, at), self._sent = self._sent, None
        return Arrived(readied.wants, readied.total, answer, lease_clock() - at)

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        sent, self._sent = self._sent, None
        try:
            if sent is not None:
                await self._collect(*sent)
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
