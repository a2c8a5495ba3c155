"""A claim that was prepared, sent from a callback, and answered later, with what may come in between."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.store.exchanging import Exchanged, Readied
from pgsched.store.line import Line
from pgsched.store.outage import Outage
from tests.proxy import Proxy
from tests.store.desk import WANT, Supervisor, Table, complaints, supervisor


@pytest.fixture
def table(connect: Callable[..., psycopg.Connection]) -> Table:
    return Table(connect())


async def send(desk: Supervisor, total: int = 5) -> tuple[Readied, asyncio.Event]:
    """Send a claim; the event comes with the answer."""
    ended = asyncio.Event()
    readied = desk.store.ready_claim(desk.id, [WANT], total)
    assert desk.store.send(readied, ended.set)
    return readied, ended


def ids(answer: Exchanged | None) -> list[int]:
    assert answer is not None
    return [one.task_id for one in answer.claims]


async def test_what_was_sent_is_claimed_and_can_be_taken_when_it_has_come(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with supervisor(dsn) as desk:
        _, ended = await send(desk)
        assert desk.store.arrived() is None
        await ended.wait()
        assert ids(desk.store.arrived()) == rows
        assert desk.store.arrived() is None, "it was taken"
        assert await desk.claim() == []


async def test_whoever_cannot_go_on_without_it_waits_for_the_answer(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with supervisor(dsn) as desk:
        readied, ended = await send(desk)
        assert ids(await desk.store.answer(readied)) == rows
        assert ended.is_set()
        assert desk.store.arrived() is None


async def test_an_engaged_line_sends_nothing(dsn: str, table: Table) -> None:
    table.insert(3)
    async with supervisor(dsn) as desk:
        readied, ended = await send(desk)
        assert not desk.store.send(readied, lambda: None)
        await ended.wait()
        assert not desk.store.send(readied, lambda: None)
        assert len(ids(desk.store.arrived())) == 3
        assert desk.store.send(readied, lambda: None)


async def test_a_line_in_use_sends_nothing(dsn: str, table: Table) -> None:
    rows = table.insert(3)
    async with supervisor(dsn) as desk:
        readied = desk.store.ready_claim(desk.id, [WANT], 5)
        claim = asyncio.create_task(desk.claim())
        await asyncio.sleep(0)
        assert not desk.store.send(readied, lambda: None)
        assert [one.task_id for one in await claim] == rows


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
    async with supervisor(dsn) as desk:
        await desk.store.close()
        assert not desk.store.send(desk.store.ready_claim(desk.id, [WANT], 5), lambda: None)
    async with supervisor(dsn, pooled=True) as desk:
        assert not desk.store.send(desk.store.ready_claim(desk.id, [WANT], 5), lambda: None)


async def test_without_a_lease_the_answer_is_left_to_whoever_asks(dsn: str, table: Table) -> None:
    table.insert(3)
    async with supervisor(dsn) as desk:
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
    async with supervisor(dsn) as desk:
        wants = [WANT._replace(task_type="b"), WANT]
        readied = desk.store.ready_claim(desk.id, wants, 5)
        assert desk.store.send(readied, lambda: None)
        answer = await desk.store.answer(readied)
        assert (ids(answer), list(answer.refused)) == ([free], wants[:1])


async def test_an_answer_that_nobody_takes_does_not_get_into_the_next_one(dsn: str, table: Table) -> None:
    table.insert(3)
    async with supervisor(dsn) as desk:
        await send(desk)
        more = [one.task_id for one in await desk.claim()]
        more += [one.task_id for one in await desk.claim()]
        assert len(more) == len(set(more))
        with pytest.raises(DatabaseError):
            await desk.store.answer(desk.store.ready_claim(desk.id, [WANT], 5))


async def test_a_connection_that_is_lost_before_the_answer_is_told_to_whoever_asks(proxy: Proxy, table: Table) -> None:
    rows = table.insert(3)
    heard = complaints()
    async with supervisor(proxy.dsn) as desk:
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
    async with supervisor(proxy.dsn, db_timeout=0.5) as desk:
        proxy.silence()
        readied, ended = await send(desk)
        await ended.wait()
        with pytest.raises(DeadlineError):
            await desk.store.answer(readied)
        proxy.pass_on()
        await desk.claim()


async def test_a_store_that_closes_waits_for_no_answer_and_watches_nothing_more(proxy: Proxy, table: Table) -> None:
    table.insert(1)
    heard = complaints()
    ended = asyncio.Event()
    async with supervisor(proxy.dsn, db_timeout=0.3) as desk:
        proxy.silence()
        _, ended = await send(desk)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await ended.wait()
    assert heard == []
