"""The store: everything a supervisor asks of PostgreSQL, one method a question.

Claims and settles have a line of their own, and so has the lease, so that a slow batch cannot starve a renewal. No
method keeps a transaction open between two calls, and nothing relies on a session when the store is pooled. A call that
was cut at its deadline may still be done by the server later: a settle is then `resent`, and `strays` finds claims
whose reply was lost. Runs in the supervisor's loop.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pgsched.errors import DatabaseError
from pgsched.events import emit
from pgsched.model import Claim, Group, Horizon, Identity, Verdict, Want
from pgsched.store.arrays import numbers, texts
from pgsched.store.claims import claims_of
from pgsched.store.exchanging import Exchanged, Exchanger, Readied
from pgsched.store.line import OUT_OF_LOCKS, REFUSED_DATA, Line, retried
from pgsched.store.listening import Hint, listen
from pgsched.store.outage import Outage
from pgsched.store.pipeline import Statement
from pgsched.store.redaction import one_line
from pgsched.store.registration import Registration, Renewed
from pgsched.store.schema import require_async

__all__ = ["Burden", "Depth", "Depths", "Exchanged", "Hint", "Readied", "Renewed", "Store", "TableSize"]

LOCK_WAIT: Final = 1.0
"""Seconds that settling and claiming wait for a lock: others hold ours for milliseconds, or who knows how long."""


class Depth(NamedTuple):
    """How much there is in a queue."""

    queue: str
    queued: int
    """Counted up to 100,000."""
    processing: int
    oldest_due: float
    """Seconds that the oldest due row has waited; 0 when none is due."""


class Depths(NamedTuple):
    """How much there is in the table."""

    queues: list[Depth]
    due: dict[str, int]
    """Due rows by task type, each counted up to 100,000; only types of which there are queued rows."""


class TableSize(NamedTuple):
    """What the statistics and the catalogue say of a table of ours, all its partitions together."""

    table: str
    rows: int | None
    """Live ones. None: the server does not count."""
    dead_rows: int | None
    bytes: int
    """With indexes, as of the last VACUUM or ANALYZE."""


class Burden(NamedTuple):
    """What makes the database slower than it need be."""

    oldest_seconds: float | None
    """For how long somebody has kept dead rows from being removed; None: the role may not see that."""
    oldest_transactions: int
    """Over how many transactions."""
    tables: list[TableSize]


class Store:
    """A supervisor's view of the database.

    Every method raises `DatabaseError` when the database is away, refuses, or does not answer in time.

    :param dsn: for libpq.
    :param namespace: first key of the claim's advisory locks.
    :param db_timeout: seconds that any call may take.
    :param pooled: the DSN leads to a transaction pooler.
    :param partitions: those that the supervisor is bound to; none: it sees all as one table.
    """

    def __init__(
        self,
        dsn: str,
        *,
        namespace: int = 1337,
        db_timeout: float = 10.0,
        pooled: bool = False,
        partitions: Sequence[int] = (),
    ) -> None:
        self._dsn = dsn
        self._partitions = partitions
        self._timeout = db_timeout
        self.outage = Outage()
        waits = {"work": min(LOCK_WAIT, db_timeout / 2), "lease": 0.0, "upkeep": 0.0, "listen": 0.0}
        self._work, self._lease, self._upkeep, self._listen = (
            Line(
                dsn, timeout=db_timeout, pooled=pooled, outage=self.outage, name=f"pgsched {name}", lock_wait=lock_wait
            )
            for name, lock_wait in waits.items()
        )
        self._exchanger = Exchanger(self._work, self._listen, namespace)
        self._registration = Registration(partial(self._ask, self._lease))

    async def open(self) -> None:
        """Connect once, so that what is wrong is known before anything is promised.

        :raises DatabaseError, UsageError: what is wrong.
        """
        await self._work.run(("ping", ()))

    async def close(self) -> None:
        """Close every connection."""
        for line in (self._work, self._lease, self._upkeep, self._listen):
            await line.close()

    async def check_schema(self) -> None:
        """Do nothing if the schema fits this code.

        :raises SchemaError: it does not; the message names the command to run.
        """
        await self._upkeep.call(require_async)

    async def register(self, identity: Identity, lease: float) -> int:
        """Enter a supervisor with a lease of so many seconds; return its id.

        To be called again when that lease is lost and nothing runs any more that was claimed under it: its claims can
        be reaped then, whatever somebody has done to its row.
        """
        return await self._registration.register(identity, lease)

    async def renew(self, supervisor_id: int, lease: float) -> Renewed | None:
        """Renew a lease; None when it has run out, which is final, or is somebody else's."""
        return await self._registration.renew(supervisor_id, lease)

    async def announce(self, supervisor_id: int, identity: Identity, taken: int | None = None) -> None:
        """Say how many processes there are now, and for which task types.

        :param taken: the wanted number that this answers.
        """
        await self._registration.announce(supervisor_id, identity, taken)

    async def deregister(self, supervisor_id: int) -> None:
        """Give the lease up; claims that are left can be reaped at once."""
        await self._registration.deregister(supervisor_id)

    async def neighbours(self, boot_id: str, pid_namespace: int) -> list[tuple[int, int, int]]:
        """Id, pid and start ticks of the supervisors that live, or seem to, beside this one."""
        return await self._ask(self._upkeep, "neighbours", boot_id, pid_namespace)

    async def expire(self, ids: Sequence[int]) -> None:
        """End the leases of supervisors that are known to be dead."""
        await self._ask(self._upkeep, "expire", numbers(ids))

    async def discover(self, task_types: Sequence[str], queues: Sequence[str] | None) -> list[Group]:
        """The groups of queued rows of these types, with the oldest row of each; in some queues, or all.

        Of a bound supervisor's partitions, each has its own.
        """
        if self._partitions:
            asked = None if queues is None else texts(queues)
            parts = numbers(self._partitions)
            rows = await self._ask(self._work, "discover_in_partitions", texts(task_types), asked, parts)
        elif queues is None:
            rows = await self._ask(self._work, "discover", texts(task_types))
        else:
            rows = await self._ask(self._work, "discover_in_queues", texts(task_types), texts(queues))
        return [Group(*row) for row in rows]

    async def exchange(
        self,
        supervisor_id: int,
        verdicts: Sequence[Verdict],
        wants: Sequence[Want],
        total: int,
        *,
        resent: bool = False,
    ) -> Exchanged:
        """Settle and claim in one transaction and one round trip; either may be empty.

        Conflicts are tried again quietly. When the server lacks memory for the locks, less is claimed. A value that it
        refuses fails the one task that it came from; nothing is claimed in that exchange.

        :param total: rows to claim at most.
        :param resent: these verdicts were sent before and the reply was lost: those that were written then count as
            settled.
        :raises LockedError: somebody holds a lock on one of the rows; nothing was done.
        :raises DatabaseError: it is not known what was done.
        """
        return await self._exchanger.exchange(supervisor_id, verdicts, wants, total, resent)

    def ready_claim(self, supervisor_id: int, wants: list[Want], total: int) -> Readied:
        """Prepare a claim, so that :meth:`send` has nothing else to do."""
        return self._exchanger.ready_claim(supervisor_id, wants, total)

    def send(self, readied: Readied, then: Callable[[], None]) -> bool:
        """Send a claim from a callback; False: nothing was claimed. A pooled store never sends.

        :param then: called when the answer has come, or never will: :meth:`arrived` or :meth:`answer` must follow,
            and before that nothing else that settles or claims.
        """
        return self._exchanger.send(readied, then)

    def arrived(self) -> Exchanged | None:
        """Take the answer to what was sent, if it has come and the lease is alive; else it is there for `answer`."""
        return self._exchanger.arrived()

    async def answer(self, readied: Readied) -> Exchanged:
        """The answer to what was sent. It raises what `exchange` does."""
        return await self._exchanger.answer(readied)

    async def reap(self, supervisor_id: int, limit: int) -> list[Claim]:
        """Take over claims of dead supervisors, and those that nobody owns; needs a live lease of one's own.

        Dead supervisors that hold nothing any more are deleted.

        :param limit: how many of either kind at most; fewer in all mean that there are no more.
        """
        mine = (str(supervisor_id), str(limit))
        dead, ownerless, _ = await self._run(self._upkeep, ("reap", mine), ("reap_ownerless", mine), ("bury", ()))
        return claims_of(dead + ownerless)

    async def confirm(self, supervisor_id: int, claims: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Of these (task id, fence), those that are still the supervisor's.

        About once a minute it also refreshes ``updated_at``, by which the article's reaper knows a living task.
        """
        return set(await self._ask(self._upkeep, "confirm", supervisor_id, *_columns(claims)))

    async def strays(self, supervisor_id: int, held: Sequence[int]) -> list[Claim]:
        """Release every claim of the supervisor that it does not hold; return those that it has reaped.

        Those are not released, because somebody may have executed them. No claim may be under way, or it would be
        taken for a stray.
        """
        known = set(held)
        strays = [row for row in await self._ask(self._work, "strays", supervisor_id) if row[0] not in known]
        if claimed := sorted(row[:2] for row in strays if not row[-1]):
            await self._ask(self._work, "release_strays", supervisor_id, *_columns(claimed))
        return claims_of(row[:-1] for row in strays if row[-1])

    async def depth(self) -> Depths:
        """How much there is in each queue, and due of each type, counted now or of late, by whatever supervisor."""
        rows = await self._ask(self._upkeep, "depth")
        return Depths(
            [Depth(*row[:4]) for row in rows if row[0] is not None],
            {row[4]: row[5] for row in rows if row[0] is None},
        )

    async def burden(self) -> Burden:
        """Who holds back vacuum for how long, and how large the tables are; from statistics and catalogue alone."""
        [oldest], tables = await self._run(self._upkeep, ("oldest_snapshot", ()), ("table_sizes", ()))
        return Burden(oldest[0], oldest[1], [TableSize(*row) for row in tables])

    async def make_range(self, width: float, ahead: float) -> str | None:
        """Make the next of the ranges, so many seconds wide, that ended tasks will stand in; return its name.

        :param ahead: seconds that are to be covered from now on.
        :return: None: there are enough, or another supervisor is at it, or tables are locked; to be asked again later.
        """
        rows = await self._ask(self._upkeep, "make_range", width, ahead)
        return None if rows[0][0] is None else str(rows[0][0])

    async def drop_range(self, older_than: float) -> tuple[str, int] | None:
        """Drop the oldest range of ended tasks that are all older; return its name and about how many there were."""
        rows = await self._ask(self._upkeep, "drop_range", older_than)
        return (str(rows[0][0]), int(rows[0][1])) if rows else None

    async def prune_failures(self, older_than: float, limit: int, after: int) -> int | None:
        """Delete failures that are older and whose task is gone, of a batch; return where the next begins, if any."""
        [[looked_at, last]] = await self._ask(self._upkeep, "prune_failures", older_than, limit, after)
        return int(last) if looked_at == limit else None

    async def prune(self, older_than: float, limit: int, begin: str | None = None) -> tuple[int, str | None]:
        """Delete up to so many tasks that ended longer ago than so many seconds; return how many, and where the next
        batch begins.

        :param begin: None: at the oldest.
        """
        [[pruned, last]] = await self._ask(self._upkeep, "prune", older_than, limit, begin)
        return int(pruned), last

    async def set_listening(self, supervisor_id: int, listening: bool) -> None:
        """Say whether the supervisor wants to be woken by those who queue rows."""
        await self._ask(self._work, "set_listening", supervisor_id, listening)

    async def horizon(self) -> Horizon:
        """How far transactions have come."""
        return Horizon(*(await self._ask(self._work, "horizon"))[0])

    async def listen(self, *, on_ready: Callable[[], None], on_hint: Callable[[Hint], None]) -> None:
        """Subscribe on a connection of its own, and hand on hints until it is lost. Not for a pooled store.

        :param on_ready: called once, when no later hint can be missed.
        """
        await listen(self._listen, on_ready=on_ready, on_hint=on_hint)

    async def _ask(self, line: Line, name: str, *parameters: object) -> list[Any]:
        # As text, a parameter has the type that the statement gives it, whatever its size; see PostgreSQL's "unknown".
        as_text = tuple(None if value is None else str(value) for value in parameters)
        [rows] = await self._run(line, (name, as_text))
        return rows

    async def _run(self, line: Line, *statements: Statement) -> list[list[Any]]:
        try:
            return await retried(lambda: line.run(*statements))
        except (*REFUSED_DATA, OUT_OF_LOCKS) as error:
            # The connection is well, so the outage has nothing to say of it.
            emit("statement_refused", logging.ERROR, statement=statements[0][0], error=one_line(error))
            raise DatabaseError(one_line(error)) from None


def _columns(claims: Sequence[tuple[int, int]]) -> tuple[str, str]:
    return numbers([task_id for task_id, _ in claims]), numbers([fence for _, fence in claims])
