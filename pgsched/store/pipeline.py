"""One transaction in one round trip, straight on libpq.

A driver's cursors wait twice, resolve types for each statement and run in a task of their own, which takes as long as
the server needs for a claim of one row. Here everything is sent, and one callback collects the answer as it comes. Runs
in the supervisor's loop, on a connection that nobody else uses meanwhile. It judges nothing: errors leave as psycopg's.
"""

import asyncio
from collections.abc import Iterator, Sequence
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

_FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class Pipeline:
    """Runs statements over one connection.

    :param prepares: whether the server keeps statements for this connection.
    """

    def __init__(self, connection: Connection, *, prepares: bool) -> None:
        self.connection = connection
        self._prepares = prepares
        self._prepared: set[str] = set()

    async def run(self, statements: Sequence[Statement], timeout: float) -> list[list[Any]]:
        """Run statements as one transaction and return the rows of each.

        :param timeout: seconds.
        :raises psycopg.Error, UnicodeError: the first statement that failed; nothing was done.
        :raises DeadlineError: no answer in time; what the server did is not known, and the connection is spoilt.
        """
        encoded = [(name, _encoded(parameters)) for name, parameters in statements]
        pgconn = self.connection.pgconn
        pgconn.enter_pipeline_mode()
        answer = _Answer(pgconn, list(self._send(encoded)), self._prepared)
        # Up to here all is one transaction.
        pgconn.pipeline_sync()
        await answer.wait(timeout)
        pgconn.exit_pipeline_mode()
        if answer.error is not None:
            raise answer.error
        transformer = Transformer(self.connection)
        answers = []
        for result in answer.results:
            transformer.set_pgresult(result)
            answers.append(transformer.load_rows(0, result.ntuples, tuple))
        return answers

    def _send(self, statements: Sequence[tuple[str, list[bytes | None]]]) -> Iterator[str | None]:
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

    def __init__(self, pgconn: pq.abc.PGconn, expected: list[str | None], prepared: set[str]) -> None:
        self._pgconn = pgconn
        self._expected = iter(expected)
        self._prepared = prepared
        self._socket = pgconn.socket
        self._writing = False
        self.results: list[pq.abc.PGresult] = []
        self.error: psycopg.Error | None = None

    async def wait(self, timeout: float) -> None:
        """Send what is queued, and wait for the end of the transaction."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._done = loop.create_future()
        timer = loop.call_later(timeout, self._expire, timeout)
        loop.add_reader(self._socket, self._receive)
        try:
            self._writing = bool(self._pgconn.flush())
            if self._writing:
                # The server may be waiting for us to read before it reads on, hence both at once.
                loop.add_writer(self._socket, self._receive)
            await self._done
        finally:
            timer.cancel()
            loop.remove_reader(self._socket)
            if self._writing:
                loop.remove_writer(self._socket)

    def _expire(self, timeout: float) -> None:
        if not self._done.done():
            self._done.set_exception(DeadlineError(f"no answer from the database within {timeout:g} s"))

    def _receive(self) -> None:
        if self._done.done():
            return
        try:
            self._exchange_bytes()
            if self._collect():
                self._done.set_result(None)
        except Exception as error:
            self._done.set_exception(error)

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


def _encoded(parameters: Sequence[str | None]) -> list[bytes | None]:
    encoded = [None if value is None else value.encode() for value in parameters]
    if any(value is not None and b"\0" in value for value in encoded):
        # libpq would take what stands before it for the whole.
        raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00) bytes")
    return encoded
