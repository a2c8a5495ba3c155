"""Samples what changes slowly: queue depths, slot states, how much of the lease is left. Also prunes on a timer."""

import logging
from collections.abc import Callable, Mapping

from pgsched.errors import DatabaseError
from pgsched.rules.lease import Trust
from pgsched.rules.retention import AHEAD, range_width
from pgsched.store.store import Store
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.observer import Observer

INTERVAL = 5.0
"""Seconds between samples."""
PRUNE_INTERVAL = 60.0
"""Seconds between prunings."""
PRUNE_BATCH = 1000


class Sampler:
    """One turn takes one sample."""

    def __init__(
        self,
        store: Store,
        trust: Trust,
        observer: Observer,
        *,
        local: Callable[[], Mapping[str, float]],
        slots: Callable[[], Mapping[str, int]],
    ) -> None:
        self._store = store
        self._trust = trust
        self._observer = observer
        self._local = local
        self._slots = slots
        self._queues: set[str] = set()

    async def turn(self) -> float:
        """Report the gauges; return the interval."""
        report = self._observer.sampled
        for name, value in self._local().items():
            report(name, value)
        for state, count in self._slots().items():
            report("slots", count, state=state)
        report("lease_remaining_seconds", max(self._trust.expires_at - lease_clock(), 0.0))
        depths = {
            depth.queue: (depth.queued, depth.processing, depth.oldest_due) for depth in await self._store.depth()
        }
        self._queues |= depths.keys()
        for queue in self._queues:
            # A queue that has run empty is in no row any more, and must not keep its last figures.
            queued, processing, oldest_due = depths.get(queue, (0, 0, 0.0))
            report("queue_depth", queued, queue=queue, state="queued")
            report("queue_depth", processing, queue=queue, state="processing")
            report("oldest_due_seconds", oldest_due, queue=queue)
        return INTERVAL


class Pruner:
    """Deletes ended tasks that are older than the limit: a range at once where they stand in one, else a batch a
    statement.

    A range is as wide as some tasks are kept too long, so those that stand in none are kept as long. What cannot be
    made or dropped now is tried again by the next turn, of whatever supervisor.
    """

    def __init__(self, store: Store, observer: Observer, *, older_than: float) -> None:
        self._store = store
        self._observer = observer
        self._older_than = older_than
        self._width = range_width(older_than)

    async def turn(self) -> float:
        """Prune everything that is old enough, and make what ranges will be needed; return the interval."""
        await self._drop_ranges()
        pruned = 0
        while batch := await self._store.prune(self._older_than + (self._width or 0.0), PRUNE_BATCH):
            pruned += batch
        if pruned:
            self._observer.event("pruned", logging.INFO, tasks=pruned)
        if self._width is not None:
            await self._make_ranges(self._width)
        return PRUNE_INTERVAL

    async def _make_ranges(self, width: float) -> None:
        """Last, because it may be refused for good, by a missing right, and what is old must go all the same."""
        try:
            while name := await self._store.make_range(width, AHEAD * width):
                self._observer.event("range_made", logging.INFO, range=name)
        except DatabaseError as error:
            self._observer.event("ranges_not_made", logging.WARNING, error=str(error))

    async def _drop_ranges(self) -> None:
        dropped = False
        while found := await self._store.drop_range(self._older_than):
            name, tasks = found
            self._observer.event("range_dropped", logging.INFO, range=name, tasks=tasks)
            dropped = True
        after: int | None = 0 if dropped else None
        while after is not None:
            after = await self._store.prune_failures(self._older_than, PRUNE_BATCH, after)
