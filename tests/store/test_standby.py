"""A claim that was prepared, sent from a callback, and answered later, with what may come in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.store import listening as ears
from pgsched.store.exchanging import Exchanged, Readied
from pgsched.store.line import Line
from pgsched.store.outage import Outage
from tests.proxy import Proxy
from tests.store.desk import WANT, Supervisor, Table, complaints, listening, supervisor


@pytest.fixture
def table(connect: Callable[..., psycopg.Connection]) -> Table:
    return Table(connect())


@asynccontextmanager
async def listener(dsn: str, **options: Any) -> AsyncIterator[Supervisor]:
    """One that hears hints: what they send goes the way that they come."""
    async with supervisor(dsn, **options) as desk, listening(desk.store):
        yield desk


async def send(desk: Supervisor, total: int = 5) -> tuple[Readied, asyncio.Event]:
    """Send a claim; the event comes with the answer."""
    ended = asyncio.Event()
    readied = desk.store.ready_claim(desk.id, [WANT], total)
    assert desk.store.send(readied, ended.set)
    return readied, ended


@contextmanager
def held(connection: psycopg.Connection, desk: Supervisor) -> Iterator[None]:
    """Hold claims up."""
    with connection.transaction():
        connection.execute("SELECT FROM pgsched_supervisors WHERE id = %s FOR UPDATE", [desk.id])
        yield


def ids(answer: Exchanged | None) -> list[int]:
    assert answer is not None
    return [one.task_id for one in answer.claims]


async def test_what_was_sent_is_claimed_and_can_be_taken_when_it_has_come(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with listener(dsn) as desk:
        _, ended = await send(desk)
        assert desk.store.arrived() is None
        await ended.wait()
        assert ids(desk.store.arrived()) == rows
        assert desk.store.arrived() is None, "it was taken"
        assert await desk.claim() == []


async def test_whoever_cannot_go_on_without_it_waits_for_the_answer(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with listener(dsn) as desk:
        readied, ended = await send(desk)
        assert ids(await desk.store.answer(readied)) == rows
        assert ended.is_set()
        assert desk.store.arrived() is None


async def test_an_engaged_line_sends_nothing(dsn: str, table: Table) -> None:
    table.insert(3)
    async with listener(dsn) as desk:
        readied, ended = await send(desk)
        assert not desk.store.send(readied, lambda: None)
        await ended.wait()
        assert not desk.store.send(readied, lambda: None)
        assert len(ids(desk.store.arrived())) == 3
        assert desk.store.send(readied, lambda: None)


async def test_a_line_in_use_sends_nothing(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with listener(dsn) as desk:
        readied = desk.store.ready_claim(desk.id, [WANT], 5)
        ping = asyncio.create_task(desk.store._listen.run(("ping", ())))
        await asyncio.sleep(0)
        assert not desk.store.send(readied, lambda: None)
        await ping
        claim = asyncio.create_task(desk.claim())
        await asyncio.sleep(0)
        assert desk.store.send(readied, lambda: None), "others claim over another line"
        assert sorted(ids(await desk.store.answer(readied)) + [one.task_id for one in await claim]) == rows


async def test_a_line_that_serves_a_call_sends_nothing(dsn: str) -> None:
    line = Line(dsn, timeout=5.0, pooled=False, outage=Outage(), name="pgsched test")
    await line.run(("ping", ()))
    held = asyncio.Event()
    let_go = asyncio.Event()

    async def hold(_connection: object) -> None:
        held.set()
        await let_go.wait()

    call = asyncio.create_task(line.call(hold))
    await held.wait()
    assert not line.send(("ping", []), lambda: None)
    let_go.set()
    await call
    await line.close()


async def test_a_line_without_a_connection_or_a_session_sends_nothing(dsn: str, table: Table) -> None:
    table.insert(3)
    async with listener(dsn) as desk:
        await desk.store.close()
        assert not desk.store.send(desk.store.ready_claim(desk.id, [WANT], 5), lambda: None)
    async with listener(dsn, pooled=True) as desk:
        assert not desk.store.send(desk.store.ready_claim(desk.id, [WANT], 5), lambda: None)


async def test_without_a_lease_the_answer_is_left_to_whoever_asks(dsn: str, table: Table) -> None:
    table.insert(3)
    async with listener(dsn) as desk:
        table.expire(desk.id)
        readied, ended = await send(desk)
        await ended.wait()
        assert desk.store.arrived() is None
        answer = await desk.store.answer(readied)
        assert (answer.lease_alive, answer.claims) == (False, [])


async def test_a_row_that_the_table_refuses_holds_up_no_other_group(dsn: str, table: Table) -> None:
    table.insert(1, task_type="b")
    [free] = table.insert(1)
    table.sql("ALTER TABLE scheduled_tasks ADD CHECK (task_type <> 'b' OR status = 'queued')")
    async with listener(dsn) as desk:
        wants = [WANT._replace(task_type="b"), WANT]
        readied = desk.store.ready_claim(desk.id, wants, 5)
        assert desk.store.send(readied, lambda: None)
        answer = await desk.store.answer(readied)
        assert (ids(answer), list(answer.refused)) == ([free], wants[:1])


async def test_an_answer_that_nobody_takes_does_not_get_into_the_next_one(dsn: str, table: Table) -> None:
    table.insert(3)
    async with listener(dsn) as desk:
        await send(desk)
        assert await desk.store._listen.run(("ping", ())) == [[(1,)]]
        with pytest.raises(DatabaseError):
            await desk.store.answer(desk.store.ready_claim(desk.id, [WANT], 5))


async def test_a_connection_that_is_lost_before_the_answer_is_told_to_whoever_asks(proxy: Proxy, table: Table) -> None:
    rows = table.insert(3)
    heard = complaints()
    async with listener(proxy.dsn) as desk:
        proxy.swallow()
        readied, ended = await send(desk)
        await ended.wait()
        assert desk.store.arrived() is None
        with pytest.raises(DatabaseError):
            await desk.store.answer(readied)
        assert table.statuses() == {"processing": 3}
        assert await desk.store.strays(desk.id, []) == []
        assert [one.task_id for one in await desk.claim()] == rows
    assert heard == []


async def test_no_answer_in_time_is_told_to_whoever_asks(proxy: Proxy, table: Table) -> None:
    table.insert(3)
    async with listener(proxy.dsn, db_timeout=2) as desk:
        proxy.silence()
        readied, ended = await send(desk)
        await ended.wait()
        with pytest.raises(DeadlineError):
            await desk.store.answer(readied)
        proxy.pass_on()
        await desk.claim()


async def test_what_is_told_while_a_claim_is_on_its_way_is_heard_after_it(
    dsn: str, connect: Callable[..., psycopg.Connection], table: Table
) -> None:
    rows = table.insert(3)
    async with supervisor(dsn) as desk, listening(desk.store) as hints:
        with held(connect(), desk):
            _, ended = await send(desk)
            table.sql("SELECT pg_notify('pgsched', 'first')")
            table.sql("SELECT pg_notify('pgsched', 'second')")
            assert not ended.is_set()
        await ended.wait()
        assert ids(desk.store.arrived()) == rows
        async with asyncio.timeout(10):
            assert [(await anext(hints)).payload for _ in range(2)] == ["first", "second"]


async def test_nobody_asks_whether_a_connection_lives_while_a_claim_is_on_its_way_over_it(
    dsn: str, connect: Callable[..., psycopg.Connection], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears, "SILENCE", 0.02)
    rows = table.insert(3)
    async with listener(dsn) as desk:
        with held(connect(), desk):
            readied, ended = await send(desk)
            await asyncio.sleep(0.2)
            assert not ended.is_set()
        assert ids(await desk.store.answer(readied)) == rows


async def test_a_store_that_closes_waits_for_no_answer_and_watches_nothing_more(proxy: Proxy, table: Table) -> None:
    table.insert(1)
    heard = complaints()
    ended = asyncio.Event()
    async with listener(proxy.dsn, db_timeout=2) as desk:
        proxy.silence()
        _, ended = await send(desk)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await ended.wait()
    assert heard == []
