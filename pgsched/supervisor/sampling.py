"""Samples what changes slowly: the supervisor's books, the queues, what burdens the database.

The samplers work from the start to the end of the service, whatever becomes of leases. What cannot be read is unknown,
and told as NaN: a figure that has stopped to move would pass for a true one.
"""

import math
from collections.abc import Callable, Iterable, Mapping

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.pool.pool import Pool
from pgsched.rules.lease import Trust
from pgsched.store.store import Depths, Store
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.duty import Duty
from pgsched.supervisor.observer import Observer

OWN_INTERVAL = 1.0
"""Seconds between samples of what the supervisor itself knows."""
INTERVAL = 5.0
"""Seconds between samples of the queues."""
SHARE = 100
"""In the long run a count that takes too long is not repeated more often than this many times its own duration."""
BURDEN_INTERVAL = 30.0
"""Seconds between samples of what moves by the minute."""
MOST_NAMES = 200
"""Queues, and task types, with a series of their own; rows may name any number of them."""
OTHER = "(other)"


class Books:
    """Samples what the supervisor itself knows.

    :param gauges: by name.
    """

    def __init__(
        self,
        trust: Trust,
        observer: Observer,
        pool: Pool,
        *,
        lease: float,
        gauges: Callable[[], Mapping[str, float]],
    ) -> None:
        self._trust = trust
        self._observer = observer
        self._pool = pool
        self._lease = lease
        self._gauges = gauges

    async def turn(self) -> float:
        """Report them; return the interval."""
        report = self._observer.sampled
        for name, value in self._gauges().items():
            report(name, value)
        for state, count in self._pool.slots().items():
            report("slots", count, state=state)
        for slot, seconds in self._pool.busy_seconds().items():
            report("slot_busy_seconds", seconds, slot=str(slot))
        for task_type, seconds in self._pool.cpu_seconds().items():
            report("task_cpu_seconds", seconds, task_type=task_type)
        report("lease_seconds", self._lease)
        report("lease_remaining_seconds", max(self._trust.expires_at - lease_clock(), 0.0))
        return OWN_INTERVAL


class Bounded:
    """Names from rows, of which so many get a series of their own; the rest shares one."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def group(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The names by series; a series that had names before and has none now is there all the same."""
        groups: dict[str, list[str]] = {name: [] for name in self.names}
        for name in names:
            series = name if name in groups or len(groups) < MOST_NAMES else OTHER
            groups.setdefault(series, []).append(name)
        self.names.update(dict.fromkeys(groups))
        return groups


class Sampler:
    """Samples how much there is to do."""

    def __init__(self, store: Store, observer: Observer, *, clock: Callable[[], float] = lease_clock) -> None:
        self._store = store
        self._observer = observer
        self._clock = clock
        self._queues = Bounded()
        self._types = Bounded()
        self._late = 0
        """Counts in a row that took too long."""

    async def turn(self) -> float:
        """Report how much there is in each queue and due of each type; return the seconds to wait.

        :raises DatabaseError: nobody knows.
        """
        began = self._clock()
        try:
            self._report(await self._depths())
        except DeadlineError:
            # Once may be the server's bad moment; a table that is too slow to count must not be counted all the time.
            self._late += 1
            return max(min(INTERVAL * 2.0 ** min(self._late, 30), SHARE * (self._clock() - began)), INTERVAL)
        self._late = 0
        return INTERVAL

    async def _depths(self) -> Depths:
        report = self._observer.sampled
        try:
            return await self._store.depth()
        except DatabaseError:
            for queue in self._queues.names:
                report("queue_depth", math.nan, queue=queue, state="queued")
                report("queue_depth", math.nan, queue=queue, state="processing")
                report("oldest_due_seconds", math.nan, queue=queue)
            for task_type in self._types.names:
                report("due_tasks", math.nan, task_type=task_type)
            raise

    def _report(self, depths: Depths) -> None:
        report = self._observer.sampled
        # A queue that has run empty is in no row any more, and must not keep its last figures.
        queues = {depth.queue: depth for depth in depths.queues}
        for series, names in self._queues.group(queues).items():
            members = [queues[name] for name in names]
            report("queue_depth", sum(member.queued for member in members), queue=series, state="queued")
            report("queue_depth", sum(member.processing for member in members), queue=series, state="processing")
            report("oldest_due_seconds", max((member.oldest_due for member in members), default=0.0), queue=series)
        for series, names in self._types.group(depths.due).items():
            report("due_tasks", sum(depths.due[name] for name in names), task_type=series)


class BurdenSampler:
    """Samples what makes the database slower than it need be."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self._tables: set[str] = set()

    async def turn(self) -> float:
        """Report it; return the interval.

        :raises DatabaseError: nobody knows.
        """
        report = self._observer.sampled
        try:
            burden = await self._store.burden()
        except DatabaseError:
            for name in ("oldest_snapshot_seconds", "oldest_snapshot_transactions"):
                report(name, math.nan)
            for table in self._tables:
                for name in ("table_rows", "table_dead_rows", "table_bytes"):
                    report(name, math.nan, table=table)
            raise
        report("oldest_snapshot_seconds", _known(burden.oldest_seconds))
        report("oldest_snapshot_transactions", burden.oldest_transactions)
        for size in burden.tables:
            self._tables.add(size.table)
            report("table_rows", _known(size.rows), table=size.table)
            report("table_dead_rows", _known(size.dead_rows), table=size.table)
            report("table_bytes", size.bytes, table=size.table)
        return BURDEN_INTERVAL


def samplers(books: Books, store: Store, observer: Observer) -> list[Duty]:
    """All of them, as duties."""
    turns = {
        "books": books.turn,
        "sample": Sampler(store, observer).turn,
        "burden": BurdenSampler(store, observer).turn,
    }
    return [Duty(name, turn, observer) for name, turn in turns.items()]


def _known(value: float | None) -> float:
    return math.nan if value is None else value
