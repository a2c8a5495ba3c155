"""A transaction in one round trip: whole or not at all, whatever size it has, and what a failure leaves behind."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from pgsched.errors import DeadlineError
from pgsched.store import pipeline
from pgsched.store.connection import connect
from pgsched.store.pipeline import Pipeline
from tests.proxy import Proxy
from tests.store.desk import cancelled_when_readable, complaints
from tests.support import Server, eventually_async

STATEMENTS = {
    "echo": b"SELECT $1::text, length($1)",
    "keep": b"INSERT INTO kept (number) VALUES ($1::integer)",
    "count": b"SELECT count(*) FROM kept",
    "sleep": b"SELECT pg_sleep($1::float8)",
    "fail": b"SELECT 1 / $1::integer",
    "names": b"SELECT name FROM pg_prepared_statements ORDER BY name",
}
LIMIT = 20.0


@pytest.fixture(autouse=True)
def statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "load", STATEMENTS.__getitem__)


@asynccontextmanager
async def opened(dsn: str, *, prepares: bool = True) -> AsyncIterator[Pipeline]:
    connection = await connect(dsn, timeout=5)
    await connection.execute("CREATE TEMPORARY TABLE kept (number integer PRIMARY KEY)")
    try:
        yield Pipeline(connection, prepares=prepares)
    finally:
        await connection.close()


def busy(server: Server, dsn: str) -> bool:
    return any(each.application_name == "pgsched" and each.state == "active" for each in server.backends(dsn))


both = pytest.mark.parametrize("prepares", [True, False], ids=["prepared", "pooled"])


@both
async def test_each_statement_has_its_rows(dsn: str, prepares: bool) -> None:
    async with opened(dsn, prepares=prepares) as line:
        for number in ("1", "2"):
            answer = await line.run([("keep", (number,)), ("echo", ("ä\n",)), ("echo", (None,)), ("count", ())], LIMIT)
            assert answer == [[], [("ä\n", 2)], [(None, None)], [(int(number),)]]


@both
async def test_it_is_one_transaction(dsn: str, prepares: bool) -> None:
    async with opened(dsn, prepares=prepares) as line:
        with pytest.raises(psycopg.errors.UniqueViolation):
            await line.run([("keep", ("1",)), ("keep", ("1",)), ("count", ())], LIMIT)
        assert await line.run([("count", ())], LIMIT) == [[(0,)]]
        assert line.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_what_a_failed_transaction_prepared_is_known_and_what_it_skipped_is_not(dsn: str) -> None:
    async with opened(dsn) as line:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await line.run([("count", ()), ("fail", ("0",)), ("echo", ("never",))], LIMIT)
        assert await line.run([("names", ())], LIMIT) == [[("count",), ("fail",), ("names",)]]
        assert await line.run([("fail", ("1",)), ("echo", ("now",)), ("count", ())], LIMIT) == [
            [(1,)],
            [("now", 3)],
            [(0,)],
        ]


@both
@pytest.mark.parametrize("size", [100_000, 5_000_000])
async def test_more_than_fits_into_any_buffer_goes_both_ways(dsn: str, prepares: bool, size: int) -> None:
    async with opened(dsn, prepares=prepares) as line:
        text = "x" * size
        answer = await line.run([("echo", (text,))] * 4, LIMIT)
        assert answer == [[(text, size)]] * 4


@both
async def test_a_zero_byte_is_refused_before_anything_is_sent(dsn: str, prepares: bool) -> None:
    async with opened(dsn, prepares=prepares) as line:
        with pytest.raises(psycopg.DataError, match="NUL"):
            await line.run([("keep", ("1",)), ("echo", ("cut\0off",))], LIMIT)
        with pytest.raises(UnicodeError):
            await line.run([("keep", ("1",)), ("echo", ("\ud800",))], LIMIT)
        assert await line.run([("count", ())], LIMIT) == [[(0,)]]


@both
async def test_a_session_that_is_terminated_meanwhile_says_so(dsn: str, prepares: bool, server: Server) -> None:
    async with opened(dsn, prepares=prepares) as line:
        call = asyncio.create_task(line.run([("sleep", ("30",))], LIMIT))
        await eventually_async(lambda: busy(server, dsn), "the server is at work")
        server.terminate(dsn, "pgsched")
        with pytest.raises(psycopg.errors.AdminShutdown):
            await call


async def test_a_connection_that_is_cut_ends_the_call(proxy: Proxy, dsn: str, server: Server) -> None:
    async with opened(proxy.dsn) as line:
        call = asyncio.create_task(line.run([("sleep", ("30",))], LIMIT))
        await eventually_async(lambda: busy(server, dsn), "the server is at work")
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            await call


async def test_a_reply_that_is_lost_ends_the_call(proxy: Proxy) -> None:
    async with opened(proxy.dsn) as line:
        proxy.swallow()
        with pytest.raises(psycopg.OperationalError):
            await line.run([("echo", ("b",))], LIMIT)


async def test_silence_ends_at_the_deadline(proxy: Proxy) -> None:
    async with opened(proxy.dsn) as line:
        proxy.silence()
        began = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0.3 s"):
            await line.run([("echo", ("a",))], 0.3)
        assert time.monotonic() - began < 10
    proxy.pass_on()


async def test_a_call_that_fails_just_as_we_are_cancelled_leaves_no_word_behind(
    proxy: Proxy, dsn: str, server: Server
) -> None:
    heard = complaints()
    async with opened(proxy.dsn) as line:
        call = asyncio.create_task(line.run([("sleep", ("30",))], LIMIT))
        await eventually_async(lambda: busy(server, dsn), "the server is at work")
        proxy.cut()
        cancelled_when_readable(call, line.connection.pgconn.socket)
        await asyncio.wait({call})
        assert call.cancelled()
    # It keeps the traceback, and that what the answer was to come through.
    del call
    gc.collect()
    assert heard == []
