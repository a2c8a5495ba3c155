"""One transaction in one round trip, straight on libpq.

A driver's cursors wait twice, resolve types for each statement and run in a task of their own, which takes as long as
the server needs for a claim of one row. Here everything is sent, and one callback collects the answer as it comes. Runs
in the supervisor's loop, on a connection that nobody else uses meanwhile. It judges nothing: errors leave as psycopg's.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from pgsched.errors import DeadlineError
from pgsched.store.connection import Connection
from pgsched.store.sql import load

Statement = tuple[str, tuple[str | None, ...]]
"""The name of a file in ``sql/``, and its parameters as text: so each has the type that the statement gives it."""
Encoded = tuple[str, list[bytes | None]]
"""The same as it is sent."""

_FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class Pipeline:
    """Runs statements over one connection.

    :param prepares: whether the server keeps statements for this connection.
    """

    def __init__(self, connection: Connection, *, prepares: bool) -> None:
        self.connection = connection
        self._transformer = Transformer(connection)
        self._prepares = prepares
        self._prepared: set[str] = set()
        self._answer: _Answer | None = None

    @property
    def engaged(self) -> bool:
        """Whether something was sent whose answer nobody has taken."""
        return self._answer is not None

    async def run(self, statements: Sequence[Statement], timeout: float) -> list[list[Any]]:
        """Run statements as one transaction and return the rows of each.

        :param timeout: seconds.
        :raises psycopg.Error, UnicodeError: the first statement that failed; nothing was done.
        :raises DeadlineError: no answer in time; what the server did is not known, and the connection is spoilt.
        """
        self.send([encoded(statement) for statement in statements], timeout)
        return await self.answer()

    def send(self, statements: Sequence[Encoded], timeout: float, then: Callable[[], None] = lambda: None) -> None:
        """Send statements as one transaction, without a wait; :meth:`answer` or :meth:`taken` is to follow.

        :param then: called when the answer is here, whatever it is.
        :raises psycopg.Error: the connection is spoilt.
        """
        pgconn = self.connection.pgconn
        pgconn.enter_pipeline_mode()
        self._answer = answer = _Answer(pgconn, self._prepared, then)
        answer.expect(self._queue(statements))
        # Up to here all is one transaction.
        pgconn.pipeline_sync()
        answer.begin(timeout)

    async def answer(self) -> list[list[Any]]:
        """The rows of each statement that was sent; it raises what `run` does."""
        answer = self._answer
        assert answer is not None
        await answer.end()
        self._finish()
        if answer.error is not None:
            raise answer.error
        return self._load(answer)

    def arrived(self) -> list[list[Any]] | None:
        """The rows, if they are here and all went well; otherwise :meth:`answer` tells."""
        return None if self._answer is None or not self._answer.good else self._load(self._answer)

    def taken(self) -> None:
        """Whoever asked whether they had arrived has taken them."""
        assert self._answer is not None
        self._answer.leave()
        self._finish()

    def _finish(self) -> None:
        self.connection.pgconn.exit_pipeline_mode()
        self._answer = None

    def _load(self, answer: "_Answer") -> list[list[Any]]:
        answers = []
        for result in answer.results:
            self._transformer.set_pgresult(result)
            answers.append(self._transformer.load_rows(0, result.ntuples, tuple))
        self._transformer.set_pgresult(None)
        return answers

    async def close(self) -> None:
        """Close the connection, whatever is under way on it."""
        if self._answer is not None:
            self._answer.leave()
        await self.connection.close()

    def _queue(self, statements: Sequence[Encoded]) -> Iterator[str | None]:
        """Queue what is to be sent; yields for each answer to come the name that it makes known, or None for rows."""
        pgconn = self.connection.pgconn
        known = set(self._prepared)
        for name, parameters in statements:
            if not self._prepares:
                pgconn.send_query_params(load(name), parameters)
            else:
                key = name.encode()
                if name not in known:
                    known.add(name)
                    pgconn.send_prepare(key, load(name))
                    yield name
                pgconn.send_query_prepared(key, parameters)
            yield None


class _Answer:
    """What the server says, collected as it comes."""

    def __init__(self, pgconn: pq.abc.PGconn, prepared: set[str], then: Callable[[], None]) -> None:
        self._pgconn = pgconn
        self._then = then
        self._expected: Iterator[str | None] = iter(())
        self._prepared = prepared
        self._socket = pgconn.socket
        self._writing = False
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        # Where nobody waits for the answer any more, nobody asks what it failed by.
        self._done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._timer: asyncio.TimerHandle | None = None
        self.results: list[pq.abc.PGresult] = []
        self.error: psycopg.Error | None = None

    @property
    def good(self) -> bool:
        """Whether all has come, and nothing has failed."""
        done = self._done
        return done.done() and not done.cancelled() and done.exception() is None and self.error is None

    def expect(self, names: Iterator[str | None]) -> None:
        """Queue what `names` queues, and remember what each answer will be about."""
        self._expected = iter(list(names))

    def begin(self, timeout: float) -> None:
        """Send what is queued."""
        # First of all, so that the server is at work while we do the rest.
        self._writing = bool(self._pgconn.flush())
        self._timer = self._loop.call_later(timeout, self._expire, timeout)
        self._loop.add_reader(self._socket, self._receive)
        if self._writing:
            # The server may be waiting for us to read before it reads on, hence both at once.
            self._loop.add_writer(self._socket, self._receive)

    async def end(self) -> None:
        """Wait for the end of the transaction."""
        try:
            await self._done
        finally:
            self.leave()

    def leave(self) -> None:
        """Watch the connection no more."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)

    def _expire(self, timeout: float) -> None:
        if not self._done.done():
            self._done.set_exception(DeadlineError(f"no answer from the database within {timeout:g} s"))
            self._then()

    def _receive(self) -> None:
        if self._done.done():
            return
        try:
            self._exchange_bytes()
            if not self._collect():
                return
        except Exception as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
        self._then()

    def _exchange_bytes(self) -> None:
        try:
            self._pgconn.consume_input()
            if self._writing and not self._pgconn.flush():
                self._writing = False
                self._loop.remove_writer(self._socket)
        except psycopg.OperationalError as lost:
            # The server's last words may have come together with the end.
            with suppress(psycopg.Error):
                self._collect()
            raise (self.error if self.error is not None and self.error.sqlstate else lost) from None

    def _collect(self) -> bool:
        """Take in what has come; True at the end of the transaction."""
        pgconn = self._pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                # It stands after each statement's answer; a lost connection has nothing else to say, again and again.
                if pgconn.status != pq.ConnStatus.OK:
                    raise self.error or psycopg.OperationalError(pgconn.get_error_message())
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                return True
            else:
                self._take(result)
        return False

    def _take(self, result: pq.abc.PGresult) -> None:
        name = next(self._expected, None)
        if result.status in _FAILED:
            self.error = self.error or psycopg.errors.error_from_result(result, "utf-8")
        elif name is not None and result.status == pq.ExecStatus.COMMAND_OK:
            # It outlives the transaction, even one that fails.
            self._prepared.add(name)
        elif name is None:
            self.results.append(result)


def encoded(statement: Statement) -> Encoded:
    """Make a statement ready to be sent.

    :raises psycopg.Error, UnicodeError: a parameter cannot be sent.
    """
    name, parameters = statement
    values = [None if value is None else value.encode() for value in parameters]
    if any(value is not None and b"\0" in value for value in values):
        # libpq would take what stands before it for the whole.
        raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00) bytes")
    return name, values
