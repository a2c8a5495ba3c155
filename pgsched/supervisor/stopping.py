"""Stops what runs, and waits for its end. When and why is the supervisor's matter. Runs in its loop."""

import asyncio
from collections.abc import Callable

from pgsched.model import OutcomeKind
from pgsched.pool.pool import Pool


class Stopping:
    """What a drain and a lost lease do to the running tasks of a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ended = asyncio.Event()

    def noted(self) -> None:
        """Something has ended."""
        self._ended.set()

    def stop(self, kind: OutcomeKind, reason: str, grace: float | None = None) -> None:
        """Stop all that runs now; see :meth:`pgsched.pool.pool.Pool.stop_task`."""
        for running in self._pool.running():
            claim = running.claim
            self._pool.stop_task(claim.task_id, kind, reason, fence=claim.fence, grace=grace)

    async def until_idle(self, stop: Callable[[], None] = lambda: None) -> None:
        """Wait, for ever where the kernel cannot end a worker.

        :param stop: called after each end too: what had been sent ahead, out of our reach, has begun then.
        """
        while self._pool.running():
            self._ended.clear()
            stop()
            await self._ended.wait()
