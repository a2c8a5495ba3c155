"""Two connections and one row: for each guard, both orders, and proof that the loser really waited."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.model import Want
from pgsched.store.claims import claim_statement
from pgsched.store.pipeline import Statement
from pgsched.store.sql import load
from pgsched.store.verdicts import settle_statement
from tests.store.desk import WANT, Bound, Table, completed, failed, released, retry, supervisor
from tests.support import Server, eventually, eventually_async

Connect = Callable[..., psycopg.Connection]
T = TypeVar("T")
CANCEL = "UPDATE scheduled_tasks SET status = 'cancelled', fence = fence + 1 WHERE id = %s AND status = 'processing'"


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a lock here waits for what the test does meanwhile, however slow the machine."""
    monkeypatch.setattr("pgsched.store.store.LOCK_WAIT", 60.0)


def begin(connect: Connect, *statements: Statement) -> tuple[psycopg.Connection, list[list[Any]]]:
    """Run statements as the store does, and leave their transaction open; return the rows of each."""
    connection = connect(autocommit=False)
    cursor = psycopg.RawCursor(connection)
    cursor.execute(load("hints"), ("60000", "true", "0"))
    answers = []
    for name, parameters in statements:
        cursor.execute(load(name), parameters)
        answers.append(cursor.fetchall() if cursor.description else [])
    return connection, answers


async def after_waiting(server: Server, dsn: str, call: Awaitable[T], release: Callable[[], None]) -> T:
    """Start a call, see it wait for a lock, release that, and return the call's answer."""
    task = asyncio.ensure_future(call)
    await eventually_async(lambda: server.waits_for_lock(dsn), "the call waits for a lock")
    assert not task.done()
    release()
    return await task


class TestSettleAgainstReap:
    async def test_the_reaper_was_first(
        self, dsn: str, server: Server, table: Table, connect: Connect, bound: Bound
    ) -> None:
        table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, partitions=bound) as slow:
            [claim] = await slow.claim()
            # The row alone, so that only its fence can tell: the reaper's lock on the supervisor is tested below.
            reaper = connect(autocommit=False)
            reaper.execute(
                "UPDATE scheduled_tasks SET fence = fence + 1, claimed_by = %s WHERE id = %s", (me.id, claim.task_id)
            )
            settling = slow.settle(completed(claim))
            assert await after_waiting(server, dsn, settling, reaper.commit) == [False]
        row = table.row(claim.task_id)
        assert (row.status, row.fence, row.claimed_by) == ("processing", 2, me.id)

    @pytest.mark.parametrize("verdict", [completed, failed])
    async def test_the_reaper_holds_the_supervisor(
        self, dsn: str, server: Server, table: Table, connect: Connect, verdict: Callable[..., Any], bound: Bound
    ) -> None:
        table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, lease=1.5, partitions=bound) as slow:
            [claim] = await slow.claim()
            early = connect(autocommit=False)
            early.execute("SELECT FROM pgsched_supervisors WHERE id = %s FOR UPDATE", (slow.id,))
            settling = asyncio.ensure_future(slow.exchange([verdict(claim)], [], 0))
            await eventually_async(lambda: server.waits_for_lock(dsn), "the settle waits")
            await lease_over(table, slow.id)
            [taken] = psycopg.RawCursor(early).execute(load("reap"), (me.id, 10)).fetchall()
            early.commit()
            answer = await settling
            assert (answer.settled, answer.claims, answer.lease_alive) == ([False], [], False)
        assert taken[0] == claim.task_id
        assert table.row(claim.task_id).claimed_by == me.id

    async def test_the_settle_was_first(self, dsn: str, table: Table, connect: Connect) -> None:
        table.insert()
        async with supervisor(dsn) as me, supervisor(dsn) as slow:
            [claim] = await slow.claim()
            settling, [[(alive, missing)]] = begin(connect, settle_statement(slow.id, [completed(claim)]))
            assert (alive, missing) == (True, None)
            assert await me.store.reap(me.id, 10) == []
            settling.commit()
            table.expire(slow.id)
            assert await me.store.reap(me.id, 10) == []
        assert table.row(claim.task_id).status == "completed"


async def lease_over(table: Table, supervisor_id: int) -> None:
    query = "SELECT lease_until < clock_timestamp() FROM pgsched_supervisors WHERE id = %s"
    await eventually_async(lambda: table.sql(query, supervisor_id)[0][0], "the lease runs out")


class TestSettleAgainstCancel:
    @pytest.mark.parametrize("verdict", [completed, failed, retry, released])
    async def test_the_cancel_was_first(
        self, dsn: str, server: Server, table: Table, connect: Connect, verdict: Callable[..., Any]
    ) -> None:
        table.insert()
        async with supervisor(dsn) as me:
            [claim] = await me.claim()
            cancelling = connect(autocommit=False)
            cancelling.execute(CANCEL, (claim.task_id,))
            assert await after_waiting(server, dsn, me.settle(verdict(claim)), cancelling.commit) == [False]
        row = table.row(claim.task_id)
        assert (row.status, row.fence) == ("cancelled", 2)
        assert table.failures(claim.task_id) == []

    async def test_the_settle_was_first(self, dsn: str, server: Server, table: Table, connect: Connect) -> None:
        table.insert()
        async with supervisor(dsn) as me:
            [claim] = await me.claim()
            settling, _ = begin(connect, settle_statement(me.id, [completed(claim)]))
            cancelled: list[int] = []
            canceller = connect()
            thread = threading.Thread(
                target=lambda: cancelled.append(canceller.execute(CANCEL, (claim.task_id,)).rowcount)
            )
            thread.start()
            eventually(lambda: server.waits_for_lock(dsn), "the cancel waits")
            settling.commit()
            thread.join(30)
        assert cancelled == [0]
        assert table.row(claim.task_id).status == "completed"


class TestRenewAgainstReap:
    async def test_a_renewal_that_waited_for_the_reaper_is_refused(
        self, dsn: str, server: Server, table: Table, connect: Connect
    ) -> None:
        table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, lease=1.5) as slow:
            await slow.claim()
            reaper = connect(autocommit=False)
            reaper.execute("SELECT FROM pgsched_supervisors WHERE id = %s FOR UPDATE", (slow.id,))
            renewal = asyncio.ensure_future(slow.store.renew(slow.id, 60))
            await eventually_async(lambda: server.waits_for_lock(dsn), "the renewal waits")
            await lease_over(table, slow.id)
            assert len(psycopg.RawCursor(reaper).execute(load("reap"), (me.id, 10)).fetchall()) == 1
            reaper.commit()
            assert await renewal is None
            assert await slow.store.renew(slow.id, 60) is None

    async def test_a_reaper_leaves_alone_whose_renewal_is_on_its_way(
        self, dsn: str, table: Table, connect: Connect
    ) -> None:
        table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, lease=1.5) as slow:
            await slow.claim()
            renewing, [[_]] = begin(connect, ("renew", (str(slow.id), "60", None)))
            await lease_over(table, slow.id)
            assert await me.store.reap(me.id, 10) == []
            renewing.commit()
            assert await me.store.reap(me.id, 10) == []
            assert len(await slow.claim()) == 0
            assert await slow.store.renew(slow.id, 60)


class TestReapAgainstReap:
    async def test_a_reaper_at_work_is_not_reaped_itself(self, dsn: str, table: Table, connect: Connect) -> None:
        """What it is about to hold would be left without a supervisor that anybody knows."""
        [task_id] = table.insert()
        async with supervisor(dsn) as me, supervisor(dsn) as dead:
            await dead.claim()
            table.expire(dead.id)
            async with supervisor(dsn, lease=1.5) as slow:
                reaping, [taken] = begin(connect, ("reap", (str(slow.id), "10")))
                assert len(taken) == 1
                await lease_over(table, slow.id)
                assert await me.store.reap(me.id, 10) == []
                reaping.commit()
                assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == [task_id]

    async def test_nor_is_one_that_takes_what_nobody_owns(self, dsn: str, table: Table, connect: Connect) -> None:
        [task_id] = table.insert()
        table.sql("UPDATE scheduled_tasks SET status = 'processing', updated_at = now() - interval '6 minutes'")
        async with supervisor(dsn) as me, supervisor(dsn, lease=1.5) as slow:
            reaping, [taken] = begin(connect, ("reap_ownerless", (str(slow.id), "10")))
            assert len(taken) == 1
            await lease_over(table, slow.id)
            assert await me.store.reap(me.id, 10) == []
            reaping.commit()
            assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == [task_id]


class TestClaimAgainstReap:
    async def test_the_reaper_holds_the_supervisor(
        self, dsn: str, server: Server, table: Table, connect: Connect, bound: Bound
    ) -> None:
        ids = table.insert(3)
        async with supervisor(dsn) as me, supervisor(dsn, partitions=bound) as slow:
            early = connect(autocommit=False)
            early.execute("SELECT FROM pgsched_supervisors WHERE id = %s FOR UPDATE", (slow.id,))
            claiming = asyncio.ensure_future(slow.exchange([], [WANT], 10))
            await eventually_async(lambda: server.waits_for_lock(dsn), "the claim waits")
            # What it has locked by then holds up nobody.
            assert {claim.task_id for claim in await me.claim()} < set(ids)
            early.execute("UPDATE pgsched_supervisors SET lease_until = now() WHERE id = %s", (slow.id,))
            assert psycopg.RawCursor(early).execute(load("reap"), (me.id, 10)).fetchall() == []
            early.commit()
            answer = await claiming
            assert (answer.claims, answer.lease_alive) == ([], False)
            assert len(await me.claim()) >= 1
        assert table.statuses() == {"processing": 3}

    async def test_a_claim_on_its_way_keeps_its_supervisor_from_being_buried(
        self, dsn: str, table: Table, connect: Connect, bound: Bound
    ) -> None:
        [task_id] = table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, lease=1.5, partitions=bound) as slow:
            claiming, [[_, claimed]] = begin(connect, claim_statement(slow.id, 1337, slow.wants(WANT), 10))
            assert claimed[0] == task_id
            await lease_over(table, slow.id)
            assert await me.store.reap(me.id, 10) == []
            claiming.commit()
            assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == [task_id]

    async def test_a_neighbours_death_is_recorded_after_its_last_claim(
        self, dsn: str, server: Server, table: Table, connect: Connect, bound: Bound
    ) -> None:
        [task_id] = table.insert()
        async with supervisor(dsn) as me, supervisor(dsn, partitions=bound) as dead:
            claiming, _ = begin(connect, claim_statement(dead.id, 1337, dead.wants(WANT), 10))
            await after_waiting(server, dsn, me.store.expire([dead.id]), claiming.commit)
            assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == [task_id]


async def test_the_same_settle_twice_at_once_is_accepted_once(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as twin:
        for _ in range(20):
            table.insert(5)
            verdicts = [completed(claim) for claim in await me.claim()]
            answers = await asyncio.gather(me.settle(*verdicts), twin._replace(id=me.id).settle(*verdicts))
            assert [sum(pair) for pair in zip(*answers, strict=True)] == [1] * 5


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_f72_sixteen_claimers_take_each_row_once(
    dsn: str, server: Server, table: Table, isolation: str, pooled: bool
) -> None:
    rows, claimers = 2000, 16
    table.insert(rows // 2)
    table.insert(rows // 2, priority=1)
    wants = [Want("a", "default", 1, 7), Want("a", "default", 0, 7)]
    name = server.value("SELECT current_database()", dsn=dsn)
    server.sql(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'")
    taken: Counter[int] = Counter()
    ready = asyncio.Barrier(claimers)

    async def work() -> None:
        async with supervisor(dsn, pooled=pooled) as me:
            await ready.wait()
            empty = 0
            verdicts: list[Any] = []
            while empty < 3 or verdicts:
                answer = await me.exchange(verdicts, wants, 7)
                assert all(answer.settled)
                taken.update(claim.task_id for claim in answer.claims)
                verdicts = [completed(claim) for claim in answer.claims]
                empty = 0 if answer.claims else empty + 1

    await asyncio.gather(*(work() for _ in range(claimers)))
    left = table.statuses()
    assert left == {"completed": rows}
    assert len(taken) == rows
    assert set(taken.values()) == {1}


class TestConflicts:
    """F54: what only met somebody is tried again, and nobody hears of it."""

    @pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
    async def test_each_statement_survives_one(
        self, dsn: str, table: Table, sqlstate: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        table.sql("CREATE SEQUENCE times")
        table.sql(
            "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF current_setting('application_name') LIKE 'pgsched %' AND nextval('times') = 1 THEN"
            f"   RAISE EXCEPTION 'conflict' USING ERRCODE = '{sqlstate}'; END IF;"
            " RETURN NULL; END $$"
        )
        for name in ("scheduled_tasks_live", "scheduled_tasks_ended", "pgsched_supervisors"):
            table.sql(
                f"CREATE TRIGGER conflict AFTER INSERT OR UPDATE OR DELETE ON {name}"
                " FOR EACH ROW EXECUTE FUNCTION conflict()"
            )

        async def meeting_one(call: Awaitable[T]) -> T:
            table.sql("SELECT setval('times', 1, false)")
            answer = await call
            assert table.sql("SELECT last_value > 1 FROM times") == [(True,)], "the statement met no conflict"
            return answer

        table.insert(4)
        async with supervisor(dsn) as me, supervisor(dsn) as dead:
            claims = await meeting_one(me.claim(total=2))
            assert await meeting_one(me.settle(completed(claims[0]))) == [True]
            table.sql("UPDATE scheduled_tasks SET updated_at = '2020-01-01Z' WHERE id = %s", claims[1].task_id)
            assert len(await meeting_one(me.store.confirm(me.id, [(claims[1].task_id, 1)]))) == 1
            table.sql("UPDATE scheduled_tasks SET started_at = updated_at WHERE id = %s", claims[1].task_id)
            assert await meeting_one(me.store.strays(me.id, [])) == []
            assert await meeting_one(me.store.renew(me.id, 60))
            await meeting_one(me.store.set_listening(me.id, True))
            assert len(await dead.claim()) == 3
            table.expire(dead.id)
            assert len(await meeting_one(me.store.reap(me.id, 10))) == 3
            await meeting_one(me.store.expire([me.id]))
            await meeting_one(me.store.deregister(me.id))
        assert caplog.records == []

    async def test_a_real_deadlock(self, dsn: str, server: Server, table: Table, connect: Connect) -> None:
        table.insert(2)
        async with supervisor(dsn) as me:
            first, second = await me.claim()
            other = connect(autocommit=False)
            other.execute("UPDATE scheduled_tasks SET error_log = 'x' WHERE id = %s", (second.task_id,))
            settling = asyncio.ensure_future(me.settle(completed(first), completed(second)))
            await eventually_async(lambda: server.waits_for_lock(dsn), "the settle waits")

            def cross() -> None:
                try:
                    other.execute("UPDATE scheduled_tasks SET error_log = 'x' WHERE id = %s", (first.task_id,))
                    other.commit()
                except psycopg.errors.DeadlockDetected:
                    other.rollback()

            await asyncio.to_thread(cross)
            assert await settling == [True, True]
        assert table.statuses() == {"completed": 2}

    async def test_one_that_never_ends_is_an_error_in_the_end(self, dsn: str, table: Table) -> None:
        table.insert()
        table.sql(
            "CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
        )
        table.sql(
            "CREATE TRIGGER conflict AFTER UPDATE ON scheduled_tasks_live FOR EACH ROW EXECUTE FUNCTION conflict()"
        )
        async with supervisor(dsn) as me:
            with pytest.raises(DatabaseError, match=r"gave up after \d+ conflicts"):
                await me.claim()
