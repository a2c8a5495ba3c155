"""What the tests of the store share: a supervisor's view of a database, and one from behind its back."""

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.rows import namedtuple_row

from pgsched.model import Claim, Failure, Identity, OutcomeKind, Verdict, VerdictKind, Want
from pgsched.store.exchanging import Exchanged
from pgsched.store.store import Hint, Store

T = TypeVar("T")
Bound = tuple[int, ...]
"""The partitions that a supervisor is bound to; none: it sees all as one table."""

IDENTITY = Identity(
    host="here", boot_id="boot", pid_namespace=4026531836, pid=4242, started_ticks=777, processes=2, task_types=("a",)
)
WANT = Want("a", "default", 0, 1000)
FAILURE = Failure(error="ValueError: no", traceback="Traceback ...", exit_code=None, cpu_seconds=0.5, peak_memory=2**40)


class Supervisor(NamedTuple):
    """A store under one lease."""

    store: Store
    id: int
    partitions: Bound = ()

    def wants(self, *wants: Want) -> list[Want]:
        """These wants, in each of the partitions that it is bound to."""
        if not self.partitions:
            return list(wants)
        return [
            want._replace(partition=part)
            for want in wants
            for part in self.partitions
            if want.partition in (None, part)
        ]

    async def claim(self, *wants: Want, total: int = 1000) -> list[Claim]:
        return (await self.exchange([], wants or [WANT], total)).claims

    async def settle(self, *verdicts: Verdict, resent: bool = False) -> list[bool]:
        return (await self.exchange(verdicts, [], 0, resent=resent)).settled

    async def exchange(
        self, verdicts: Sequence[Verdict], wants: Sequence[Want], total: int, *, resent: bool = False
    ) -> Exchanged:
        return await self.store.exchange(self.id, verdicts, self.wants(*wants), total, resent=resent)


@asynccontextmanager
async def supervisor(dsn: str, *, lease: float = 60.0, **options: Any) -> AsyncIterator[Supervisor]:
    """A registered supervisor; its row stays when it closes, as after a death."""
    store = Store(dsn, **options)
    try:
        await store.open()
        yield Supervisor(store, await store.register(IDENTITY, lease), options.get("partitions", ()))
    finally:
        await store.close()


@asynccontextmanager
async def listening(store: Store) -> AsyncIterator[AsyncIterator[Hint]]:
    """The hints that a store hands on, from when it listens.

    :raises DatabaseError: what ended the listening, for whoever waits for a hint.
    """
    heard: asyncio.Queue[Hint] = asyncio.Queue()
    ready = asyncio.Event()
    ears = asyncio.ensure_future(store.listen(on_ready=ready.set, on_hint=heard.put_nowait))

    async def hints() -> AsyncIterator[Hint]:
        while True:
            yield await first(heard.get())

    async def first(call: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.ensure_future(call)
        try:
            await asyncio.wait({waiting, ears}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await ears
            return waiting.result()
        finally:
            waiting.cancel()

    try:
        await first(ready.wait())
        yield hints()
    finally:
        ears.cancel()
        await asyncio.gather(ears, return_exceptions=True)


def complaints() -> list[dict[str, Any]]:
    """What the loop complains of from now on."""
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    return heard


def cancelled_when_readable(call: "asyncio.Task[Any]", socket: int) -> None:
    """Cancel a call in the very turn of the loop in which it learns what came over its socket."""
    assert select.select([socket], [], [], 30)[0]
    # Timers follow what was read in the same turn.
    asyncio.get_running_loop().call_later(0, call.cancel)


class Table:
    """Makes and reads rows behind the back of what is tested."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def insert(self, count: int = 1, *, run_at: str = "now() - interval '1 minute'", **columns: object) -> list[int]:
        """Insert rows and return their ids; `run_at` is an expression, in which `i` counts them from 1."""
        columns = {"task_type": "a", **columns}
        names, marks = ", ".join(columns), ", ".join(["%s"] * len(columns))
        rows = self.sql(
            f"INSERT INTO scheduled_tasks (run_at, {names})"
            f" SELECT {run_at}, {marks} FROM generate_series(1, {count}) AS i RETURNING id",
            *columns.values(),
        )
        return [task_id for (task_id,) in rows]

    def row(self, task_id: int) -> Any:
        """A task's row, as a named tuple."""
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            [row] = cursor.execute("SELECT * FROM scheduled_tasks WHERE id = %s", (task_id,)).fetchall()
        return row

    def failures(self, task_id: int) -> list[Any]:
        with self.connection.cursor(row_factory=namedtuple_row) as cursor:
            query = "SELECT * FROM pgsched_failures WHERE task_id = %s ORDER BY id"
            return cursor.execute(query, (task_id,)).fetchall()

    def statuses(self) -> dict[str, int]:
        return dict(self.sql("SELECT status, count(*) FROM scheduled_tasks GROUP BY status"))

    def expire(self, supervisor_id: int, ago: str = "1 second") -> None:
        """Let a lease run out, and let everything that was done under it lie before that."""
        self.sql("UPDATE pgsched_supervisors SET lease_until = now() - %s::interval WHERE id = %s", ago, supervisor_id)
        self.sql(
            "UPDATE scheduled_tasks SET updated_at = updated_at - %s::interval - interval '1 second'"
            " WHERE claimed_by = %s",
            ago,
            supervisor_id,
        )


def completed(claim: Claim, result: str | None = None, seconds: float = 0.25) -> Verdict:
    return Verdict(claim, VerdictKind.COMPLETED, seconds, result=result)


def failed(claim: Claim, failure: Failure = FAILURE) -> Verdict:
    return Verdict(claim, VerdictKind.FAILED, 0.25, outcome=OutcomeKind.RAISED, failure=failure)


def retry(claim: Claim, delay: float = 30.0, failure: Failure = FAILURE) -> Verdict:
    return Verdict(claim, VerdictKind.RETRY, 0.25, delay, outcome=OutcomeKind.CRASHED, failure=failure)


def released(claim: Claim) -> Verdict:
    return Verdict(claim, VerdictKind.RELEASED, 0.0, outcome=OutcomeKind.INTERRUPTED)


KINDS: tuple[Callable[[Claim], Verdict], ...] = (completed, failed, retry, released)
