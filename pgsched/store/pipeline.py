"""One transaction in one round trip, straight on libpq.

A driver's cursors wait twice, resolve types for each statement and run in a task of their own, which takes as long as
the server needs for a claim of one row. Here everything is sent, and one callback collects the answer as it comes. Runs
in the supervisor's loop, on a connection that nobody else uses meanwhile. It judges nothing: errors leave as psycopg's.
"""

import asyncio
from collections.abc import Callable, Sequence
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
        self._ear: _Ear | None = None

    @property
    def engaged(self) -> bool:
        """Whether something was sent, or half of it, whose answer nobody has taken."""
        return self._answer is not None or self.connection.pgconn.pipeline_status != pq.PipelineStatus.OFF

    def hear(self, on_notify: Callable[[str, int], None]) -> "asyncio.Future[None]":
        """Hand on notifications from now on, as they come; with payload and server process of each.

        :return: fails when the connection is lost, or given up.
        """
        self._ear = _Ear(self.connection.pgconn, self._receive, on_notify)
        return self._ear.lost

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
        expected = self._queue(statements)
        # Up to here all is one transaction.
        pgconn.pipeline_sync()
        # Sent first of all, so that the server is at work while we do the rest.
        writing = bool(pgconn.flush())
        self._answer = _Answer(pgconn, expected, self._prepared, then, heard=self._ear is not None)
        self._answer.begin(timeout, writing)

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
        if self._ear is not None:
            # What has come together with the answer.
            asyncio.get_running_loop().call_soon(self._ear.tell)

    def _receive(self) -> None:
        """The connection is listened to, and says something."""
        assert self._ear is not None
        if self._answer is None or not self._answer.receive():
            self._ear.receive()

    def _load(self, answer: "_Answer") -> list[list[Any]]:
        answers = []
        for result in answer.results:
            self._transformer.set_pgresult(result)
            answers.append(self._transformer.load_rows(0, result.ntuples, tuple))
        self._transformer.set_pgresult(None)
        return answers

    async def close(self, reason: str) -> None:
        """Close the connection, whatever is under way on it.

        :param reason: for whoever hears notifications.
        """
        if self._answer is not None:
            self._answer.leave()
        if self._ear is not None:
            self._ear.lose(psycopg.OperationalError(reason))
        await self.connection.close()

    def _queue(self, statements: Sequence[Encoded]) -> list[str | None]:
        """Queue what is to be sent; for each answer to come, the name that it makes known, or None for rows."""
        pgconn = self.connection.pgconn
        expected: list[str | None] = []
        for name, parameters in statements:
            if not self._prepares:
                pgconn.send_query_params(load(name), parameters)
            else:
                key = name.encode()
                if name not in self._prepared and name not in expected:
                    pgconn.send_prepare(key, load(name))
                    expected.append(name)
                pgconn.send_query_prepared(key, parameters)
            expected.append(None)
        return expected


class _Ear:
    """Hears what the server says unasked.

    :param on_readable: called when it says anything, until the connection is lost.
    """

    def __init__(
        self, pgconn: pq.abc.PGconn, on_readable: Callable[[], None], on_notify: Callable[[str, int], None]
    ) -> None:
        self._pgconn = pgconn
        self._on_notify = on_notify
        self._socket = pgconn.socket
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        # The end of a tenure may come in the same moment, and then nobody asks what it was lost by.
        self.lost.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._loop.add_reader(self._socket, on_readable)
        self._loop.call_soon(self.tell)

    def lose(self, error: Exception) -> None:
        """Hear nothing more."""
        if not self.lost.done():
            self._loop.remove_reader(self._socket)
            self.lost.set_exception(error)

    def receive(self) -> None:
        """Take in what has come, which answers nothing."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self.lose(error)
        else:
            self.tell()

    def tell(self) -> None:
        """Hand on what was notified."""
        while not self.lost.done() and (notify := self._pgconn.notifies()):
            self._on_notify(notify.extra.decode(), notify.be_pid)


class _Answer:
    """What the server says, collected as it comes.

    :param expected: for each answer the name that it makes known, or None for rows.
    :param heard: somebody else watches the connection, and calls `receive`.
    """

    def __init__(
        self,
        pgconn: pq.abc.PGconn,
        expected: list[str | None],
        prepared: set[str],
        then: Callable[[], None],
        *,
        heard: bool,
    ) -> None:
        self._heard = heard
        self._pgconn = pgconn
        self._then = then
        self._expected = iter(expected)
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

    def begin(self, timeout: float, writing: bool) -> None:
        """Wait for it so many seconds.

        :param writing: not everything is sent.
        """
        self._writing = writing
        self._timer = self._loop.call_later(timeout, self._expire, timeout)
        if not self._heard:
            self._loop.add_reader(self._socket, self.receive)
        if self._writing:
            # The server may be waiting for us to read before it reads on, hence both at once.
            self._loop.add_writer(self._socket, self.receive)

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
        if not self._heard:
            self._loop.remove_reader(self._socket)
        if self._writing:
            self._loop.remove_writer(self._socket)

    def _expire(self, timeout: float) -> None:
        if not self._done.done():
            self._done.set_exception(DeadlineError(f"no answer from the database within {timeout:g} s"))
            self._then()

    def receive(self) -> bool:
        """Take in what has come; False: there is nothing more to come."""
        if self._done.done():
            return False
        try:
            self._exchange_bytes()
            if not self._collect():
                return True
        except Exception as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
        self._then()
        return True

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
