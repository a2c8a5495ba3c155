"""A line to the database: one connection for one purpose, opened when needed and replaced when it has failed.

Every call has a deadline, and the server a shorter one: where it gives up in time, nothing was done, and the connection
stays. What the driver raises leaves here as one of our errors; the kinds that the caller can do something about,
conflicts, refused data and lack of lock memory, leave as they are. Runs in the supervisor's loop.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from pgsched.errors import DatabaseError, DeadlineError, LockedError
from pgsched.store.connection import Connection, connect, deadline, turned_read_only
from pgsched.store.outage import Outage
from pgsched.store.pipeline import Encoded, Pipeline, Statement
from pgsched.store.redaction import one_line

T = TypeVar("T")
CONFLICTS: Final = (errors.SerializationFailure, errors.DeadlockDetected)
"""Rolled back whole; to be tried again, quietly. Also what locking a row that has just changed partitions raises."""
REFUSED_DATA: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.StatementTooComplex,
    errors.RaiseException,
    UnicodeError,
)
"""A value is at fault, or a trigger does not like it; not the connection."""
OUT_OF_LOCKS: Final = errors.OutOfMemory
"""``max_locks_per_transaction`` is too small for the batch."""
FORBIDDEN: Final = (
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.DependentObjectsStillExist,
)
"""The server is there, and has answered: rights or tables are not what we need."""
ATTEMPTS: Final = 20
"""How often what meets conflicts is tried, by a supervisor, a command, or a program that enqueues."""
_PASSED_ON: Final = (*CONFLICTS, *REFUSED_DATA, OUT_OF_LOCKS)


class Line:
    """Calls are served one at a time.

    :param timeout: seconds that a call may take.
    :param pooled: the DSN may lead to a transaction pooler: nothing is prepared, and nothing set for the session.
    :param lock_wait: seconds that a statement may wait for a lock; 0 for as long as it may run.
    """

    def __init__(
        self, dsn: str, *, timeout: float, pooled: bool, outage: Outage, name: str, lock_wait: float = 0.0
    ) -> None:
        self._dsn = dsn
        self._timeout = timeout
        # The server gives up a little earlier than we do: an error costs less than a connection. With a session of its
        # own, a line says this once; with a pooler, in every transaction.
        limit, wait = str(max(round(timeout * 900), 1)), str(round(lock_wait * 1000))
        self._hints = ("hints", (limit, "true" if pooled else "false", wait))
        self._pooled = pooled
        self._outage = outage
        self._name = name
        self._lock = asyncio.Lock()
        self._pipeline: Pipeline | None = None

    async def run(self, *statements: Statement) -> list[list[Any]]:
        """Run statements as one transaction, in one round trip; return the rows of each. It raises what `call` does."""
        return await self._serve(lambda pipeline: self._transaction(pipeline, statements))

    async def hear(self, statement: Statement, on_notify: Callable[[str, int], None]) -> "asyncio.Future[None]":
        """Run a LISTEN, and hand on each notification's payload and server process from then on. It raises what `call`
        does.

        :return: fails when the connection is lost.
        """

        async def subscribe(pipeline: Pipeline) -> "asyncio.Future[None]":
            await self._transaction(pipeline, (statement,))
            return pipeline.hear(on_notify)

        return await self._serve(subscribe)

    @property
    def engaged(self) -> bool:
        """Whether something was sent whose answer nobody has taken."""
        return self._pipeline is not None and self._pipeline.engaged

    def send(self, statement: Encoded, then: Callable[[], None]) -> bool:
        """Send a statement at once, if the line is free and has a session of its own.

        :param then: called when :meth:`answer` or :meth:`arrived` will tell what became of it.
        """
        pipeline = self._pipeline
        if pipeline is None or self._pooled or self._lock.locked() or pipeline.engaged:
            return False
        try:
            pipeline.send([statement], self._timeout, then)
        except (psycopg.Error, OSError):
            # Whoever uses the line next finds that it is engaged, or broken, and replaces it.
            return False
        return True

    def arrived(self) -> list[Any] | None:
        """The rows of what was sent, if they are here, all went well, and nobody waits for them."""
        answers = None if self._pipeline is None or self._lock.locked() else self._pipeline.arrived()
        return None if answers is None else answers[0]

    def taken(self) -> None:
        """The rows that had arrived were taken; the line is free."""
        assert self._pipeline is not None
        self._pipeline.taken()

    async def answer(self) -> list[Any]:
        """The rows of what was sent. It raises what `call` does."""
        [rows] = await self._serve(Pipeline.answer, sent=True)
        return rows

    async def call(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Do some work on the connection.

        :raises DeadlineError: it took too long.
        :raises LockedError: somebody holds a lock; nothing was done.
        :raises DatabaseError: it failed; the connection has been thrown away, and what the server did is not known.
        :raises psycopg.Error: a conflict, data that the server refuses, or a lack of lock memory: nothing was done.
        """

        def on_connection(pipeline: Pipeline) -> Coroutine[Any, Any, T]:
            connection = pipeline.connection
            return deadline(connection, work(connection), self._timeout)

        return await self._serve(on_connection)

    async def _serve(self, call: Callable[[Pipeline], Coroutine[Any, Any, T]], *, sent: bool = False) -> T:
        async with self._lock:
            began = time.monotonic()
            if self._pipeline is not None and self._pipeline.engaged is not sent:
                # The answer to something else is still to come, and nobody will take it.
                await self._discard()
            try:
                if sent and self._pipeline is None:
                    raise DatabaseError("the connection was given up before the answer came")
                result = await call(self._pipeline or await self._open())
            except _PASSED_ON:
                self._outage.succeeded(began)
                raise
            except errors.LockNotAvailable as error:
                self._outage.succeeded(began)
                raise LockedError(one_line(error)) from None
            except errors.QueryCanceled as error:
                late = DeadlineError(one_line(error))
                self._outage.failed(late)
                raise late from None
            except (psycopg.Error, DatabaseError, OSError) as error:
                await self._discard()
                failure = error if isinstance(error, DatabaseError) else DatabaseError(one_line(error))
                if isinstance(error, FORBIDDEN):
                    # Thrown away all the same: the next session may have another role or search_path.
                    self._outage.refused(began, failure)
                else:
                    self._outage.failed(failure)
                raise failure from None
            except BaseException:
                await self._discard()
                raise
            self._outage.succeeded(began)
            if self._pipeline is not None and turned_read_only(self._pipeline.connection):
                # It would answer questions for ever, with what was there when another server took over.
                await self._discard("the server has turned read-only")
            return result

    async def close(self) -> None:
        """Close the connection, if there is one."""
        async with self._lock:
            await self._discard()

    async def _open(self) -> Pipeline:
        connection = await connect(self._dsn, timeout=self._timeout, pooled=self._pooled, application_name=self._name)
        pipeline = Pipeline(connection, prepares=not self._pooled)
        try:
            if not self._pooled:
                await pipeline.run([("session", ()), self._hints], self._timeout)
        except BaseException:
            # Whatever kept the server from hearing it: no call may come over a session that was not told.
            await connection.close()
            raise
        self._pipeline = pipeline
        return pipeline

    async def _discard(self, reason: str = "the connection was given up") -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            await pipeline.close(reason)

    async def _transaction(self, pipeline: Pipeline, statements: tuple[Statement, ...]) -> list[list[Any]]:
        if self._pooled:
            return (await pipeline.run((self._hints, *statements), self._timeout))[1:]
        return await pipeline.run(statements, self._timeout)


def pause() -> float:
    """Seconds before the next attempt: random, so that the two who met do not meet again."""
    return random.uniform(0.001, 0.02)


async def retried(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat what met a conflict.

    :raises DatabaseError: every attempt met one.
    """
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except CONFLICTS as error:
            conflict = one_line(error)
            await asyncio.sleep(pause())
    raise DatabaseError(f"gave up after {ATTEMPTS} conflicts: {conflict}")
