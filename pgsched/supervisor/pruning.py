"""Prunes on a timer: old ranges of ended tasks go as a whole, other old tasks by batches; ranges are made ahead.

Every supervisor that was told how long to keep tasks does it; what one cannot do now, another, or a later turn, will.
Runs in the supervisor's loop under a lease.
"""

import logging
from typing import Final

from pgsched.errors import DatabaseError
from pgsched.rules.retention import AHEAD, range_width
from pgsched.store.store import Store
from pgsched.supervisor.observer import Observer

INTERVAL: Final = 60.0
"""Seconds between prunings."""
BATCH: Final = 1000
"""Tasks, or failures, that one statement looks at."""


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
        """Prune everything that is old enough, and make what ranges will be needed; return the interval.

        :raises DatabaseError: not everything was pruned; what was, stays so.
        """
        failure: DatabaseError | None = None
        try:
            await self._drop_ranges()
            await self._prune()
        except DatabaseError as error:
            # Without new ranges there would be ever more to prune by batches.
            failure = error
        if self._width is not None:
            await self._make_ranges(self._width)
        if failure is not None:
            raise failure
        return INTERVAL

    async def _prune(self) -> None:
        pruned, count, begin = 0, BATCH, None
        try:
            while count == BATCH:
                count, begin = await self._store.prune(self._older_than + (self._width or 0.0), BATCH, begin)
                pruned += count
        finally:
            if pruned:
                self._observer.event("pruned", logging.INFO, tasks=pruned)

    async def _drop_ranges(self) -> None:
        """Drop what is old, and what was recorded of the failures there.

        It may be refused for good, by a view that somebody has made of a range, and then its tasks go by batches.
        """
        dropped = False
        try:
            while found := await self._store.drop_range(self._older_than):
                name, tasks = found
                self._observer.event("range_dropped", logging.INFO, range=name, tasks=tasks)
                dropped = True
        except DatabaseError as error:
            self._observer.event("ranges_not_dropped", logging.WARNING, error=str(error))
        after: int | None = 0 if dropped else None
        while after is not None:
            after = await self._store.prune_failures(self._older_than, BATCH, after)

    async def _make_ranges(self, width: float) -> None:
        """Last, because it may be refused for good, by a missing right, and what is old must go all the same."""
        try:
            while name := await self._store.make_range(width, AHEAD * width):
                self._observer.event("range_made", logging.INFO, range=name)
        except DatabaseError as error:
            self._observer.event("ranges_not_made", logging.WARNING, error=str(error))
