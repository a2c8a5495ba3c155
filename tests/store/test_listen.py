"""Hints: who is woken, by what, and what happens when the listening connection is lost."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.model import Horizon
from pgsched.store import line as lines
from pgsched.store import listening as ears
from pgsched.store.connection import Connection, connect
from pgsched.store.sql import load
from pgsched.store.store import Hint
from tests.proxy import Proxy
from tests.store.desk import Table, cancelled_when_readable, complaints, completed, listening, released, supervisor
from tests.support import Server, eventually_async

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


async def hint(hints: AsyncIterator[Hint]) -> str:
    async with asyncio.timeout(10):
        return (await anext(hints)).payload


def horizon(table: Table) -> Horizon:
    return Horizon(*table.sql(load("horizon").decode())[0])


async def nothing_but(hints: AsyncIterator[Hint], table: Table) -> None:
    """Demand that nothing came before a hint of our own."""
    table.sql("SELECT pg_notify('pgsched', 'the end')")
    assert await hint(hints) == "the end"


async def test_an_insert_wakes_one_who_sleeps_and_nobody_else(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, listening(me.store) as hints:
        table.insert()
        await nothing_but(hints, table)
        await me.store.set_listening(me.id, True)
        table.insert(100)
        assert await hint(hints) == ""
        await nothing_but(hints, table)
        await me.store.set_listening(me.id, False)
        table.insert()
        await nothing_but(hints, table)


async def test_nobody_is_woken_for_the_dead(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, listening(me.store) as hints:
        await me.store.set_listening(me.id, True)
        table.expire(me.id)
        table.insert()
        await nothing_but(hints, table)


async def test_a_settle_wakes_nobody(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, listening(me.store) as hints:
        table.insert(2)
        await me.store.set_listening(me.id, True)
        first, second = await me.claim()
        assert await me.settle(completed(first), released(second)) == [True, True]
        await nothing_but(hints, table)


async def test_an_insert_that_has_not_seen_the_flag_is_known_to_be_under_way(
    dsn: str, table: Table, connect: Connect
) -> None:
    """Its number may be higher than that of the transaction which sets the flag."""
    late = Table(connect())
    async with supervisor(dsn) as me, listening(me.store) as hints:
        table.sql("BEGIN")
        table.sql("UPDATE pgsched_supervisors SET listening = true")
        late.sql("BEGIN")
        late.insert()
        table.sql("COMMIT")
        then = await me.store.horizon()
        assert then.oldest < then.next
        late.sql("COMMIT")
        await eventually_async(lambda: horizon(table).oldest >= then.next, "whatever had a number then is over")
        await nothing_but(hints, table)


async def test_who_only_reads_is_not_waited_for(table: Table, connect: Connect) -> None:
    reader = Table(connect())
    reader.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.statuses()

    def quiet() -> bool:
        oldest, following = horizon(table)
        return oldest == following

    await eventually_async(quiet, "no transaction that writes is under way")
    reader.sql("COMMIT")


async def test_what_is_said_about_wake_ups_spares_the_disk_and_nothing_else_does(dsn: str, table: Table) -> None:
    async def durable(connection: psycopg.AsyncConnection) -> str:
        return str((await (await connection.execute("SHOW synchronous_commit")).fetchall())[0][0])

    table.sql("CREATE TABLE spared (setting text)")
    table.sql(
        "CREATE FUNCTION spare() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO spared VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    table.sql(
        "CREATE TRIGGER spare AFTER UPDATE OF listening ON pgsched_supervisors FOR EACH ROW EXECUTE FUNCTION spare()"
    )
    async with supervisor(dsn) as me:
        await me.store.set_listening(me.id, True)
        assert table.sql("SELECT setting FROM spared") == [("off",)]
        assert await me.store._work.call(durable) == "on", "claims come over the same connection"


async def test_a_hint_says_whose_it_is(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, listening(me.store) as hints:
        await me.store.set_listening(me.id, True)
        table.insert()
        async with asyncio.timeout(10):
            assert await anext(hints) == Hint("", table.connection.info.backend_pid)


async def test_a_payload_is_handed_on(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, listening(me.store) as hints:
        table.sql("SELECT pg_notify('pgsched', 'cancel')")
        assert await hint(hints) == "cancel"


async def test_f40_a_lost_connection_raises(dsn: str, server: Server) -> None:
    async with supervisor(dsn) as me:

        async def listen() -> None:
            async with listening(me.store) as hints:
                server.terminate(dsn, "pgsched listen")
                await hint(hints)

        with pytest.raises(DatabaseError, match="listening connection"):
            await listen()
        async with listening(me.store):
            pass


async def test_f40_a_silent_connection_raises(
    dsn: str, proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    monkeypatch.setattr(ears, "SILENCE", 0.2)

    def asked() -> bool:
        backends = server.backends(dsn)
        return any(b.application_name == "pgsched listen" and "SELECT 1" in b.query for b in backends)

    async with supervisor(proxy.dsn, db_timeout=2) as me:

        async def listen() -> None:
            async with listening(me.store) as hints:
                quiet = asyncio.create_task(hint(hints))
                await eventually_async(asked, "the quiet connection is asked whether it lives")
                table.sql("SELECT pg_notify('pgsched', 'x')")
                assert await quiet == "x"
                proxy.silence()
                await hint(hints)

        with pytest.raises(DatabaseError):
            await listen()
        proxy.pass_on()


async def test_f36_a_server_that_has_turned_read_only_is_left(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never say anything."""

    async def turning(*arguments: Any, **options: Any) -> Connection:
        connection = await connect(*arguments, **options)
        if options["application_name"] == "pgsched listen":
            await connection.execute("SET default_transaction_read_only = on")
        return connection

    monkeypatch.setattr(ears, "SILENCE", 0.2)
    monkeypatch.setattr(lines, "connect", turning)
    async with supervisor(dsn) as me:

        async def listen() -> None:
            async with listening(me.store) as hints:
                await hint(hints)

        with pytest.raises(DatabaseError, match="has turned read-only"):
            await listen()


async def test_a_server_that_is_away_raises_at_once(proxy: Proxy) -> None:
    async with supervisor(proxy.dsn) as me:
        proxy.refuse()
        with pytest.raises(DatabaseError, match="cannot connect"):
            async with listening(me.store):
                pass


async def test_one_that_is_cancelled_ends_at_once(proxy: Proxy) -> None:
    async with supervisor(proxy.dsn) as me:

        async def listen() -> None:
            async with listening(me.store) as hints:
                ready.set()
                await anext(hints)

        ready = asyncio.Event()
        task = asyncio.create_task(listen())
        await ready.wait()
        proxy.silence()
        task.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(asyncio.CancelledError):
                await task
        proxy.pass_on()


async def test_one_that_is_lost_just_as_it_is_cancelled_leaves_no_word_behind(
    proxy: Proxy, dsn: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = complaints()
    opened: list[Connection] = []

    async def connected(*arguments: Any, **options: Any) -> Connection:
        opened.append(await connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(lines, "connect", connected)
    async with supervisor(proxy.dsn) as me:
        ready = asyncio.Event()
        call = asyncio.create_task(me.store.listen(on_ready=ready.set, on_hint=lambda hint: None))
        await ready.wait()
        proxy.cut()
        cancelled_when_readable(call, opened[-1].pgconn.socket)
        await asyncio.wait({call})
        assert call.cancelled()
    # It keeps the traceback, and that what the answer was to come through.
    del call
    gc.collect()
    assert heard == []
