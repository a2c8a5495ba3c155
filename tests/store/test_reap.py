"""Reap: whose claims are taken over, whose are not, and when a supervisor's row goes."""

from collections.abc import Callable

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.events import FIELDS
from tests.store.desk import FAILURE, Table, completed, retry, supervisor

Connect = Callable[..., psycopg.Connection]
LONG_AGO = "now() - interval '301 seconds'"
SHORTLY = "now() - interval '290 seconds'"


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


def article_claims(table: Table, count: int, updated_at: str, claimed_by: int | None = None) -> list[int]:
    """Rows as a claimer leaves them that knows nothing of owners and fences."""
    ids = table.insert(count)
    table.sql(
        f"UPDATE scheduled_tasks SET status = 'processing', claimed_by = %s, updated_at = {updated_at}"
        " WHERE id = ANY (%s)",
        claimed_by,
        ids,
    )
    return ids


async def test_the_claims_of_a_dead_supervisor_change_hands(dsn: str, table: Table) -> None:
    ids = table.insert(3, payload='{"n": 1}', timeout=5.0)
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        late = await dead.claim()
        assert await me.store.reap(me.id, 10) == []
        table.expire(dead.id)
        claims = await me.store.reap(me.id, 10)
        assert sorted(claim.task_id for claim in claims) == ids
        assert {claim._replace(task_id=0, place=None) for claim in claims} == {
            late[0]._replace(task_id=0, fence=2, payload="{}", late=0.0, run_at=claims[0].run_at, place=None)
        }
        row = table.row(ids[0])
        assert (row.status, row.fence, row.claimed_by, row.retry_count) == ("processing", 2, me.id, 0)
        assert await me.store.reap(me.id, 10) == []
        assert await dead.settle(*map(completed, late)) == [False] * 3
        assert await me.settle(*[retry(claim, failure=FAILURE) for claim in claims]) == [True] * 3
    assert table.statuses() == {"queued": 3}


async def test_it_goes_by_batches_and_takes_each_claim_once(dsn: str, table: Table) -> None:
    ids = table.insert(10)
    ownerless = article_claims(table, 4, LONG_AGO)
    async with supervisor(dsn) as me, supervisor(dsn) as one, supervisor(dsn) as two:
        await one.claim(total=6)
        await two.claim()
        table.expire(one.id)
        table.expire(two.id)
        taken = [await me.store.reap(me.id, 4) for _ in range(4)]
    assert [len(claims) for claims in taken] == [8, 4, 2, 0]
    assert sorted(claim.task_id for claims in taken for claim in claims) == sorted(ids + ownerless)


async def test_claims_without_an_owner_get_five_minutes(dsn: str, table: Table) -> None:
    article_claims(table, 2, SHORTLY)
    old = article_claims(table, 2, LONG_AGO)
    async with supervisor(dsn) as me:
        claims = await me.store.reap(me.id, 10)
        assert sorted(claim.task_id for claim in claims) == old
        assert {claim.fence for claim in claims} == {1}
        assert await me.settle(*map(completed, claims)) == [True, True]


async def test_so_do_those_whose_owners_row_is_gone(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as one, supervisor(dsn) as gone, supervisor(dsn) as me:
        table.sql("DELETE FROM pgsched_supervisors WHERE id = %s", gone.id)
        old = [
            task_id
            for owner in (one.id - 1, gone.id, me.id + 1, 2**62, -5)
            for task_id in article_claims(table, 1, LONG_AGO, owner)
        ]
        article_claims(table, 1, SHORTLY, gone.id)
        article_claims(table, 1, LONG_AGO, one.id)
        article_claims(table, 1, LONG_AGO, me.id)
        assert sorted(claim.task_id for claim in await me.store.reap(me.id, 10)) == sorted(old)


async def test_a_row_touched_after_the_leases_end_is_somebody_elses(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        table.sql("UPDATE pgsched_supervisors SET lease_until = now() - interval '10 minutes' WHERE id = %s", dead.id)
        article_claims(table, 1, "now() - interval '9 minutes' + interval '5 minutes'", dead.id)
        [forgotten] = article_claims(table, 1, "now() - interval '6 minutes'", dead.id)
        [its_own] = article_claims(table, 1, "now() - interval '11 minutes'", dead.id)
        claims = await me.store.reap(me.id, 10)
    assert sorted(claim.task_id for claim in claims) == [forgotten, its_own]


async def test_one_whose_own_lease_has_run_out_reaps_nothing(dsn: str, table: Table) -> None:
    article_claims(table, 1, LONG_AGO)
    table.insert()
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        await dead.claim()
        table.expire(dead.id)
        table.expire(me.id)
        assert await me.store.reap(me.id, 10) == []
    assert table.statuses() == {"processing": 2}


async def test_what_somebody_holds_is_skipped_without_waiting(dsn: str, table: Table, connect: Connect) -> None:
    ids = table.insert(3)
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        await dead.claim()
        table.expire(dead.id)
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", (ids[0],))
        assert sorted(claim.task_id for claim in await me.store.reap(me.id, 10)) == ids[1:]
        holder.rollback()
        assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == ids[:1]


async def test_what_was_queued_again_is_not_reaped(dsn: str, table: Table) -> None:
    """As the article's reaper does it, which leaves the owner."""
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        table.insert()
        await dead.claim()
        table.sql("UPDATE scheduled_tasks SET status = 'queued'")
        table.expire(dead.id)
        assert await me.store.reap(me.id, 10) == []
    assert table.statuses() == {"queued": 1}


@pytest.mark.parametrize("owner", [None, -5])
async def test_what_nobody_owns_and_somebody_holds_is_skipped_without_waiting(
    dsn: str, table: Table, connect: Connect, owner: int | None
) -> None:
    ids = article_claims(table, 2, LONG_AGO, owner)
    async with supervisor(dsn, db_timeout=5) as me:
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", (ids[0],))
        assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == ids[1:]
        holder.rollback()
        assert [claim.task_id for claim in await me.store.reap(me.id, 10)] == ids[:1]


async def test_a_dead_supervisors_row_goes_when_it_holds_nothing(dsn: str, table: Table, connect: Connect) -> None:
    table.insert(2)
    async with supervisor(dsn) as me, supervisor(dsn) as dead, supervisor(dsn) as alive:
        await dead.claim()
        table.expire(dead.id)
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM scheduled_tasks FOR UPDATE")
        present = "SELECT id FROM pgsched_supervisors ORDER BY id"
        await me.store.reap(me.id, 10)
        assert table.sql(present) == [(me.id,), (dead.id,), (alive.id,)]
        holder.rollback()
        assert len(await me.store.reap(me.id, 1)) == 1
        assert table.sql(present) == [(me.id,), (dead.id,), (alive.id,)]
        assert len(await me.store.reap(me.id, 1)) == 1
        assert table.sql(present) == [(me.id,), (alive.id,)]


async def test_the_dead_are_not_woken_any_more(dsn: str, table: Table, connect: Connect) -> None:
    table.insert()
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        await dead.claim()
        await dead.store.set_listening(dead.id, True)
        table.expire(dead.id)
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM scheduled_tasks FOR UPDATE")
        await me.store.reap(me.id, 10)
    assert table.sql("SELECT listening FROM pgsched_supervisors WHERE id = %s", dead.id) == [(False,)]


async def test_a_statement_that_the_table_refuses_is_told(
    dsn: str, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    article_claims(table, 1, LONG_AGO)
    table.sql("ALTER TABLE scheduled_tasks ADD CONSTRAINT own CHECK (fence = 0)")
    async with supervisor(dsn) as me:
        with pytest.raises(DatabaseError, match="own"):
            await me.store.reap(me.id, 10)
    [record] = caplog.records
    assert (record.msg, record.levelname) == ("statement_refused", "ERROR")
    fields = getattr(record, FIELDS)
    assert fields["statement"] == "reap"
    assert 'violates check constraint "own"' in fields["error"]
