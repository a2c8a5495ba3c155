"""Inserts tasks over a connection that somebody else has opened, in his transaction or in one of their own.

The rows were checked where they were made (``options``, ``rules.payload``); what PostgreSQL refuses all the same
becomes one line. Runs in any program that enqueues. The sync and the async form differ in nothing but the waiting.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection, AsyncRawCursor, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import scalar_row

from pgsched.errors import DatabaseError, UsageError
from pgsched.model import NewTask
from pgsched.store.arrays import numbers, texts
from pgsched.store.line import CONFLICTS
from pgsched.store.line import retried as retried_async
from pgsched.store.refusals import refusals, retried
from pgsched.store.sql import load
from pgsched.store.statements import values

BATCH_ROWS: Final = 1000
BATCH_CHARACTERS: Final = 8 * 1024 * 1024
"""Of payload in one statement, unless a single task has more."""
_TRIES: Final = 100
"""A key that changes hands this often while we look is not a race but an error."""


class _Batch(NamedTuple):
    """One statement, and which of the given tasks its ids belong to."""

    statement: str
    parameters: Sequence[object]
    turns: Sequence[int]


def insert(conn: Connection[Any], tasks: Sequence[NewTask]) -> list[int]:
    """Insert tasks, all or none, and return their ids in order.

    In autocommit mode outside of a transaction they are committed at once; else they belong to the caller's
    transaction. A task whose ``unique_key`` a live task has is not inserted, and the id is that one's.

    :raises UsageError: a value is refused, by us or by PostgreSQL.
    :raises SchemaError: the tables are missing.
    :raises DatabaseError: anything else. Only a conflict (``psycopg.errors.SerializationFailure``,
        ``DeadlockDetected``) in the caller's transaction is raised as it is: nobody but the caller can repeat it.
    """
    batches = _batches(tasks)
    alone = _alone(conn)

    def body() -> list[int]:
        ids = [0] * len(tasks)
        with conn.transaction() if alone and len(batches) > 1 else nullcontext():
            for batch in batches:
                for turn, task_id in zip(batch.turns, _run(conn, batch), strict=True):
                    ids[turn] = task_id
        return ids

    with _refusals(alone):
        return retried(body) if alone else body()


async def insert_async(conn: AsyncConnection[Any], tasks: Sequence[NewTask]) -> list[int]:
    """The same as `insert` for coroutines."""
    batches = _batches(tasks)
    alone = _alone(conn)

    async def body() -> list[int]:
        ids = [0] * len(tasks)
        async with conn.transaction() if alone and len(batches) > 1 else nullcontext():
            for batch in batches:
                for turn, task_id in zip(batch.turns, await _run_async(conn, batch), strict=True):
                    ids[turn] = task_id
        return ids

    with _refusals(alone):
        return await retried_async(body) if alone else await body()


def _run(conn: Connection[Any], batch: _Batch) -> list[int]:
    for _ in range(_TRIES):
        if ids := values(conn, batch.statement, *batch.parameters):
            return ids
    raise _restless(batch)


async def _run_async(conn: AsyncConnection[Any], batch: _Batch) -> list[int]:
    # The caller's connection may have any row factory.
    async with AsyncRawCursor(conn, row_factory=scalar_row) as cursor:
        for _ in range(_TRIES):
            await cursor.execute(load(batch.statement), batch.parameters)
            if ids := await cursor.fetchall():
                return ids
    raise _restless(batch)


def _restless(batch: _Batch) -> DatabaseError:
    return DatabaseError(
        f"cannot enqueue: unique_key {batch.parameters[-1]!r} is neither free nor taken after {_TRIES} tries"
    )


def _batches(tasks: Sequence[NewTask]) -> list[_Batch]:
    """The statements: many tasks at once, but one by one those that have a key."""
    for task in tasks:
        if task.run_at is not None and task.run_at.utcoffset() is None:
            raise UsageError(f"run_at {task.run_at.isoformat()}: has no time zone; use an aware datetime")
    plain = [turn for turn, task in enumerate(tasks) if task.unique_key is None]
    # In one order, so that two who insert the same keys wait for each other and do not deadlock.
    keyed = sorted((task.unique_key, turn) for turn, task in enumerate(tasks) if task.unique_key is not None)
    return [
        *(_batch(tasks, turns) for turns in _chunks(tasks, plain)),
        *(_Batch("enqueue_once", tasks[turn], [turn]) for _, turn in keyed),
    ]


def _chunks(tasks: Sequence[NewTask], turns: Sequence[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    characters = 0
    for turn in turns:
        characters += len(tasks[turn].payload)
        if chunk and (len(chunk) == BATCH_ROWS or characters > BATCH_CHARACTERS):
            yield chunk
            chunk, characters = [], len(tasks[turn].payload)
        chunk.append(turn)
    if chunk:
        yield chunk


def _batch(tasks: Sequence[NewTask], turns: Sequence[int]) -> _Batch:
    if len(turns) == 1:
        return _Batch("enqueue_one", tasks[turns[0]][:-1], turns)
    chosen = [tasks[turn] for turn in turns]
    fields = (
        texts(task.task_type for task in chosen),
        texts(task.payload for task in chosen),
        texts(task.queue for task in chosen),
        numbers(task.priority for task in chosen),
        numbers(task.max_retries for task in chosen),
        texts(None if task.run_at is None else task.run_at.isoformat() for task in chosen),
        numbers(task.delay for task in chosen),
        texts(None if task.timeout is None else repr(task.timeout) for task in chosen),
    )
    return _Batch("enqueue", fields, turns)


def _alone(conn: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether our statements are a transaction of their own, which we may repeat."""
    return conn.autocommit and conn.info.transaction_status is TransactionStatus.IDLE


@contextmanager
def _refusals(alone: bool) -> Iterator[None]:
    try:
        with refusals("cannot enqueue", unless=() if alone else CONFLICTS):
            yield
    except UnicodeEncodeError as error:
        raise UsageError(
            f"cannot enqueue: {error.object[error.start : error.end]!a} has no form in the connection's encoding "
            f"({error.encoding})"
        ) from error
