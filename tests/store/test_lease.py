"""Supervisors and their leases; what they confirm, give back, and are told."""

import os
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsched.errors import SchemaError, UsageError
from pgsched.store import admin
from pgsched.store.sql import load
from pgsched.store.store import Renewed, Store
from tests.store.desk import IDENTITY, KINDS, WANT, Table, completed, retry, supervisor
from tests.store.test_ranges import make_old_range
from tests.support import Server, eventually

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


def lease_left(table: Table, supervisor_id: int) -> float:
    query = "SELECT extract(epoch FROM lease_until - now())::float8 FROM pgsched_supervisors WHERE id = %s"
    return float(table.sql(query, supervisor_id)[0][0])


def supervisors(table: Table) -> list[int]:
    return [supervisor_id for (supervisor_id,) in table.sql("SELECT id FROM pgsched_supervisors ORDER BY id")]


async def test_registering_says_who_and_until_when(dsn: str, table: Table) -> None:
    async with supervisor(dsn, lease=15) as me:
        assert 13 < lease_left(table, me.id) <= 15
    [row] = table.sql(
        "SELECT host, boot_id, pid_namespace, pid, started_ticks, processes, queues, task_types, listening"
        " FROM pgsched_supervisors"
    )
    assert row == ("here", "boot", 4026531836, 4242, 777, 2, [], ["a"], False)


async def test_a_lease_is_renewed_until_it_has_run_out(dsn: str, table: Table) -> None:
    async with supervisor(dsn, lease=15) as me:
        assert await me.store.renew(me.id, 100)
        assert 90 < lease_left(table, me.id) <= 100
        table.expire(me.id)
        assert not await me.store.renew(me.id, 100)
        assert lease_left(table, me.id) < 0
        assert not await me.store.renew(me.id + 1, 100)


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM pgsched_supervisors",
        "TRUNCATE pgsched_supervisors",
        "UPDATE pgsched_supervisors SET lease_until = now() - interval '1 hour'",
    ],
)
async def test_what_somebody_does_to_our_row_delays_no_claim(dsn: str, table: Table, harm: str) -> None:
    ids = table.insert(3)
    async with supervisor(dsn) as other, supervisor(dsn) as me:
        claims = await me.claim()
        table.sql(f"{harm}{'' if 'TRUNC' in harm else f' WHERE id = {me.id}'}")
        assert not await me.store.renew(me.id, 60)
        again = await me.store.register(IDENTITY, 60)
        assert again not in (me.id, other.id)
        reaped = await me.store.reap(again, 10)
        assert sorted(claim.task_id for claim in reaped) == ids
        assert await me.settle(*map(completed, claims)) == [False] * 3
        assert me.id not in supervisors(table), "what holds nothing goes"


async def test_what_was_touched_after_our_lease_is_somebody_elses(dsn: str, table: Table) -> None:
    """The article's reaper and its claimer leave our name where it is."""
    untouched, taken = table.insert(2)
    async with supervisor(dsn, lease=1.5) as me:
        await me.claim()
        eventually(lambda: lease_left(table, me.id) < 0, "the end of the lease")
        table.sql("UPDATE scheduled_tasks SET updated_at = now() WHERE id = %s", taken)
        table.sql("DELETE FROM pgsched_supervisors")
        again = await me.store.register(IDENTITY, 60)
        assert [claim.task_id for claim in await me.store.reap(again, 10)] == [untouched]


async def test_what_we_touched_until_the_very_end_of_our_lease_is_given_up(dsn: str, table: Table) -> None:
    """By the database's clock it began a little later than we count from."""
    [task_id] = table.insert()
    async with supervisor(dsn, lease=1.5) as me:
        await me.claim()
        eventually(lambda: lease_left(table, me.id) < 0, "the end of the lease")
        table.sql("UPDATE pgsched_supervisors SET lease_until = now()")
        table.sql("UPDATE scheduled_tasks SET updated_at = (SELECT lease_until FROM pgsched_supervisors)")
        again = await me.store.register(IDENTITY, 60)
        assert [claim.task_id for claim in await me.store.reap(again, 10)] == [task_id]


async def test_who_has_our_id_now_keeps_its_lease(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me:
        table.sql("UPDATE pgsched_supervisors SET pid = pid + 1, lease_until = now() - interval '1 hour'")
        await me.store.register(IDENTITY, 60)
        assert lease_left(table, me.id) < -3000


async def test_a_lease_is_not_renewed_by_another_process_of_the_same_id(dsn: str, table: Table) -> None:
    """The database was set back to before our registration, and somebody else has been given our id since."""
    async with supervisor(dsn, lease=15) as me:
        table.sql("UPDATE pgsched_supervisors SET pid = pid + 1")
        assert not await me.store.renew(me.id, 100)
        assert lease_left(table, me.id) <= 15


async def test_a_number_that_was_asked_for_comes_with_the_renewal_until_it_is_answered(
    dsn: str, connect: Connect, table: Table
) -> None:
    async with supervisor(dsn, lease=15) as me, supervisor(dsn, lease=15) as other:
        assert await me.store.renew(me.id, 100) == Renewed(None)
        asked = admin.scale(connect(), 8, [str(me.id)])
        assert [(one.id, one.host, one.pid, one.before) for one in asked] == [(me.id, "here", 4242, 2)]
        for _ in range(2):
            assert await me.store.renew(me.id, 100) == Renewed(8)
        assert await other.store.renew(other.id, 100) == Renewed(None)
        await me.store.announce(me.id, replace(IDENTITY, processes=8, task_types=("a", "b")), 8)
        assert await me.store.renew(me.id, 100) == Renewed(None)
        [row] = table.sql("SELECT processes, task_types FROM pgsched_supervisors WHERE id = %s", me.id)
        assert row == (8, ["a", "b"])


async def test_a_number_that_was_asked_for_meanwhile_stays(dsn: str, connect: Connect) -> None:
    async with supervisor(dsn, lease=15) as me:
        for number in (8, 3):
            admin.scale(connect(), number, None)
        await me.store.announce(me.id, replace(IDENTITY, processes=8), 8)
        await me.store.announce(me.id, replace(IDENTITY, processes=8))
        assert await me.store.renew(me.id, 100) == Renewed(3)


async def test_what_another_process_of_the_same_id_has_said_stays(dsn: str, connect: Connect, table: Table) -> None:
    async with supervisor(dsn, lease=15) as me:
        table.sql("UPDATE pgsched_supervisors SET pid = pid + 1")
        admin.scale(connect(), 8, None)
        await me.store.announce(me.id, replace(IDENTITY, processes=8, task_types=("b",)), 8)
        assert table.sql("SELECT processes, task_types, wanted_processes FROM pgsched_supervisors") == [(2, ["a"], 8)]
        await me.store.deregister(me.id)
        assert supervisors(table) == [me.id]
        [task_id] = table.insert()
        table.sql("UPDATE scheduled_tasks SET status = 'processing', claimed_by = %s WHERE id = %s", me.id, task_id)
        await me.store.deregister(me.id)
        assert lease_left(table, me.id) > 0


async def test_those_that_are_asked_live_and_bear_the_name(dsn: str, connect: Connect, table: Table) -> None:
    async with supervisor(dsn, lease=15) as me, supervisor(dsn, lease=15) as dead:
        table.expire(dead.id)
        assert [one.id for one in admin.scale(connect(), 4, None)] == [me.id]
        assert [one.id for one in admin.scale(connect(), 4, ["here", "there"])] == [me.id]
        assert admin.scale(connect(), 4, ["there", str(dead.id)]) == []
        for number in (0, 1025):
            with pytest.raises(UsageError, match="wanted_processes"):
                admin.scale(connect(), number, None)


async def test_neighbours_are_the_living_of_this_pid_namespace(dsn: str) -> None:
    store = Store(dsn)
    for identity in (replace(IDENTITY, boot_id="other"), replace(IDENTITY, pid_namespace=1)):
        await store.register(identity, 60)
    one, two, dead = [await store.register(IDENTITY, lease) for lease in (60, 60, 60)]
    await store.expire([dead])
    found = await store.neighbours(IDENTITY.boot_id, IDENTITY.pid_namespace)
    assert sorted(found) == [(one, 4242, 777), (two, 4242, 777)]
    await store.close()


async def test_expiring_ends_a_lease_now_and_never_prolongs_one(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as dead:
        await me.store.expire([dead.id])
        assert not await dead.store.renew(dead.id, 60)
        table.expire(dead.id, "1 hour")
        await me.store.expire([dead.id])
        assert lease_left(table, dead.id) < -3000
        assert await me.store.renew(me.id, 60)
        await me.store.expire([])


async def test_leaving_with_empty_hands_leaves_nothing(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as other:
        table.insert()
        await other.claim()
        await me.store.deregister(me.id)
        assert supervisors(table) == [other.id]


async def test_claims_of_one_who_left_can_be_reaped_at_once(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as other:
        [task_id] = table.insert()
        await me.claim()
        await me.store.deregister(me.id)
        assert not await me.store.renew(me.id, 60)
        assert [claim.task_id for claim in await other.store.reap(other.id, 10)] == [task_id]
        await other.store.reap(other.id, 10)
        assert supervisors(table) == [other.id]


async def test_leaving_prolongs_no_lease(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me:
        table.insert()
        await me.claim()
        table.expire(me.id, "1 hour")
        await me.store.deregister(me.id)
        assert lease_left(table, me.id) < -3000


async def test_counting_waits_for_nobody(dsn: str, connect: Connect) -> None:
    async with supervisor(dsn, db_timeout=3) as me:
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM pgsched_supervisors FOR UPDATE")
        assert (await me.store.depth()).queues == []


class TestConfirm:
    async def test_tells_which_claims_are_still_ours(self, dsn: str, table: Table) -> None:
        table.insert(6)
        async with supervisor(dsn) as me, supervisor(dsn) as other:
            kept, cancelled, reaped, taken, gone, done = claims = await me.claim()
            table.sql("UPDATE scheduled_tasks SET status = 'cancelled', fence = 2 WHERE id = %s", cancelled.task_id)
            table.sql("UPDATE scheduled_tasks SET fence = 2 WHERE id = %s", reaped.task_id)
            table.sql("UPDATE scheduled_tasks SET claimed_by = %s WHERE id = %s", other.id, taken.task_id)
            table.sql("DELETE FROM scheduled_tasks WHERE id = %s", gone.task_id)
            await me.settle(completed(done))
            held = [(claim.task_id, claim.fence) for claim in claims]
            assert await me.store.confirm(me.id, held) == {(kept.task_id, 1)}
            assert await me.store.confirm(me.id, []) == set()
            table.expire(me.id)
            assert await me.store.confirm(me.id, held) == set()

    async def test_what_somebody_has_queued_again_is_not_ours(self, dsn: str, table: Table) -> None:
        """As the article's reaper does: neither the fence nor the owner changes."""
        table.insert()
        async with supervisor(dsn) as me:
            [claim] = await me.claim()
            table.sql("UPDATE scheduled_tasks SET status = 'queued'")
            assert await me.store.confirm(me.id, [(claim.task_id, claim.fence)]) == set()

    async def test_refreshes_what_was_not_touched_for_a_minute(self, dsn: str, table: Table) -> None:
        table.insert(3)
        async with supervisor(dsn) as me:
            old, fresh, foreign = await me.claim()
            age = "UPDATE scheduled_tasks SET updated_at = now() - %s::interval WHERE id = %s"
            table.sql(age, "61 seconds", old.task_id)
            table.sql(age, "50 seconds", fresh.task_id)
            table.sql(age, "61 seconds", foreign.task_id)
            before = [table.row(claim.task_id) for claim in (old, fresh, foreign)]
            held = [(old.task_id, 1), (fresh.task_id, 1), (foreign.task_id, 9)]
            assert await me.store.confirm(me.id, held) == {(old.task_id, 1), (fresh.task_id, 1)}
            after = [table.row(claim.task_id) for claim in (old, fresh, foreign)]
        assert (after[0].updated_at - before[0].updated_at).total_seconds() > 60
        assert after[0].fence == 1
        assert after[1:] == before[1:]

    async def test_waits_for_nobody(self, dsn: str, table: Table, connect: Connect) -> None:
        table.insert(2)
        async with supervisor(dsn) as me:
            claims = await me.claim()
            table.sql("UPDATE scheduled_tasks SET updated_at = now() - interval '2 minutes'")
            holder = connect(autocommit=False)
            holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", (claims[0].task_id,))
            held = [(claim.task_id, claim.fence) for claim in claims]
            assert await me.store.confirm(me.id, held) == set(held)
            holder.rollback()
            ages = table.sql("SELECT updated_at > now() - interval '1 minute' FROM scheduled_tasks ORDER BY id")
        assert ages == [(False,), (True,)]


class TestStrays:
    async def test_what_is_not_held_is_released_at_no_cost(self, dsn: str, table: Table) -> None:
        table.insert(3)
        async with supervisor(dsn) as me, supervisor(dsn) as other:
            mine = await me.claim(total=2)
            theirs = await other.claim()
            assert await me.store.strays(me.id, [claim.task_id for claim in mine]) == []
            assert await me.store.strays(me.id, [mine[0].task_id]) == []
            row = table.row(mine[1].task_id)
            assert (row.status, row.fence, row.claimed_by, row.retry_count) == ("queued", 2, None, 0)
            assert await me.settle(completed(mine[0]), completed(mine[1])) == [True, False]
            assert await other.settle(*map(completed, theirs)) == [True]

    async def test_a_row_that_has_changed_since_it_was_looked_at_is_left(
        self, dsn: str, table: Table, connect: Connect
    ) -> None:
        table.insert(3)
        async with supervisor(dsn) as me:
            changed, given_away, back = [claim.task_id for claim in await me.claim()]
            table.sql("UPDATE scheduled_tasks SET fence = 2 WHERE id = %s", changed)
            table.sql("UPDATE scheduled_tasks SET claimed_by = 0 WHERE id = %s", given_away)
            table.sql("UPDATE scheduled_tasks SET status = 'queued' WHERE id = %s", back)
            cursor = psycopg.RawCursor(connect())
            ids = [changed, given_away, back]
            assert cursor.execute(load("release_strays"), (me.id, ids, [1, 1, 1])).fetchall() == []

    async def test_what_was_reaped_is_not_released_because_somebody_may_have_begun_it(
        self, dsn: str, table: Table
    ) -> None:
        """The reply to a reap was lost: without this, a task that kills its supervisor would cost nothing then."""
        reaped, *ownerless = table.insert(2)
        async with supervisor(dsn) as me, supervisor(dsn) as dead:
            await dead.claim(total=1)
            table.expire(dead.id)
            table.sql(
                "UPDATE scheduled_tasks SET status = 'processing', updated_at = now() - interval '6 minutes'"
                " WHERE id = ANY (%s)",
                ownerless,
            )
            taken = await me.store.reap(me.id, 10)
            claimed = table.insert()
            assert len(await me.claim()) == 1
            assert await dead.store.strays(dead.id, []) == []
            strays = await me.store.strays(me.id, [])
            assert {(claim.task_id, claim.fence, claim.attempt) for claim in strays} == {
                (claim.task_id, claim.fence, 1) for claim in taken
            }
            assert table.row(claimed[0]).status == "queued"
            assert await me.settle(*map(retry, strays)) == [True, True]
            assert table.row(reaped).retry_count == 1

    async def test_many(self, dsn: str, table: Table) -> None:
        table.insert(2000)
        async with supervisor(dsn) as me:
            claims = await me.claim(WANT._replace(quota=2000), total=2000)
            held = [claim.task_id for claim in claims[::2]]
            assert await me.store.strays(me.id, held) == []
            assert table.statuses() == {"processing": 1000, "queued": 1000}


class TestSchema:
    async def test_one_that_fits_is_no_news(self, dsn: str) -> None:
        store = Store(dsn)
        await store.check_schema()
        await store.close()

    async def test_f84_a_missing_one_names_the_command(self, empty_dsn: str) -> None:
        store = Store(empty_dsn)
        with pytest.raises(SchemaError, match="pgsched migrate"):
            await store.check_schema()
        await store.close()


async def test_pruning_takes_what_ended_long_ago_in_batches(dsn: str, table: Table) -> None:
    table.insert(5, status="completed", finished_at="2020-01-01Z")
    table.insert(2, status="completed", finished_at="now")
    table.insert(1)
    async with supervisor(dsn) as me:
        assert [(await me.store.prune(3600, 3))[0] for _ in range(3)] == [3, 2, 0]
    assert table.statuses() == {"completed": 2, "queued": 1}


async def test_the_rights_that_check_asks_for_are_all_that_a_supervisor_needs(
    dsn: str, table: Table, server: Server
) -> None:
    role = f"pgsched_test_{os.getpid()}"
    server.sql(f"CREATE ROLE {role}")
    try:
        table.sql(f"SET ROLE {role}")
        lacks = psycopg.RawCursor(table.connection).execute(load("check_rights")).fetchall()
        table.sql("RESET ROLE")
        for relation, privileges, kind in lacks:
            table.sql(f"GRANT {privileges} ON {kind}{relation} TO {role}")
        table.insert(5)
        make_old_range(table, 2)
        async with supervisor(make_conninfo(dsn, options=f"-c role={role}")) as me:
            await me.store.check_schema()
            claims = await me.claim()
            assert await me.settle(*[kind(c) for kind, c in zip(KINDS, claims, strict=False)]) == [True] * 4
            held = [(claim.task_id, claim.fence) for claim in claims]
            assert await me.store.confirm(me.id, held) == {held[4]}
            assert await me.store.strays(me.id, []) == []
            assert await me.store.reap(me.id, 10) == []
            assert (await me.store.prune(-1, 10))[0] == 2
            assert await me.store.make_range(3600, 3600)
            assert await me.store.drop_range(86400)
            assert await me.store.prune_failures(-1, 10, 0) is None
            await me.store.set_listening(me.id, True)
            assert (await me.store.depth()).queues != []
            assert await me.store.renew(me.id, 60)
            await me.store.expire([me.id])
            await me.store.deregister(me.id)
    finally:
        table.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
