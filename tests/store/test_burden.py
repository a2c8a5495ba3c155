"""What the store says of old snapshots and of tables: true figures, and none where the role may not see them."""

from collections.abc import Callable

import psycopg
import pytest

from pgsched.store.store import Store, TableSize
from tests.roles import role
from tests.store.desk import Table, supervisor
from tests.support import Server, eventually_async

TABLES = ["pgsched_failures", "pgsched_supervisors", "scheduled_tasks_ended", "scheduled_tasks_live"]
Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


async def sizes(store: Store) -> dict[str, TableSize]:
    return {size.table: size for size in (await store.burden()).tables}


async def test_a_snapshot_is_as_old_as_its_transaction(dsn: str, table: Table, connect: Connect) -> None:
    async with supervisor(dsn) as me:
        before = await me.store.burden()
        other = connect(autocommit=False)
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT pg_current_xact_id()")
        began = other.execute("SELECT now() FROM pg_sleep(0.01)").fetchone()
        for _ in range(5):
            table.insert()
        during = await me.store.burden()
        age = table.sql("SELECT date_part('epoch', clock_timestamp() - %s)", began[0])[0][0]  # type: ignore[index]
        other.rollback()
    assert before.oldest_seconds is not None
    assert during.oldest_seconds is not None
    assert 0.01 <= during.oldest_seconds <= age
    assert during.oldest_transactions >= 5


async def test_a_transaction_that_holds_nothing_back_is_no_snapshot(
    dsn: str, table: Table, connect: Connect, server: Server
) -> None:
    async with supervisor(dsn) as me:
        idle = connect(autocommit=False)
        idle.execute("SELECT 1")
        held = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND coalesce(backend_xmin, backend_xid) IS NOT NULL"
        )
        await eventually_async(lambda: server.value(held, dsn=dsn) == 0)
        assert (await me.store.burden()).oldest_seconds == 0
        idle.rollback()


async def test_a_role_that_may_not_see_times_is_told_none(dsn: str, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.execute("SELECT pg_current_xact_id()")
    with role(dsn, "supervisor") as limited:
        store = Store(limited.dsn)
        try:
            burden = await store.burden()
        finally:
            await store.close()
    other.rollback()
    assert burden.oldest_seconds is None
    assert burden.oldest_transactions >= 1
    assert [size.table for size in burden.tables] == TABLES


@pytest.mark.parametrize("partitions", [1, 3])
async def test_dead_rows_of_all_partitions_are_one_figure(dsn: str, table: Table, partitions: int) -> None:
    if partitions > 1:
        table.sql(f"SELECT pgsched_split({partitions})")
    async with supervisor(dsn) as me:
        table.insert(30)
        # Autovacuum must not come between.
        for (leaf,) in table.sql("SELECT relid::text FROM pg_partition_tree('scheduled_tasks_live') WHERE isleaf"):
            table.sql(f"ALTER TABLE {leaf} SET (autovacuum_enabled = off)")
        table.sql("UPDATE scheduled_tasks SET updated_at = now()")
        table.sql("SELECT pg_stat_force_next_flush()")

        async def updated() -> bool:
            return (await sizes(me.store))["scheduled_tasks_live"][1:3] == (30, 30)

        async def vacuumed() -> bool:
            return (await sizes(me.store))["scheduled_tasks_live"][1:3] == (30, 0)

        await eventually_async(updated)  # type: ignore[arg-type]
        table.sql("VACUUM scheduled_tasks")
        await eventually_async(vacuumed)  # type: ignore[arg-type]
        live = (await sizes(me.store))["scheduled_tasks_live"]
    assert live.bytes >= 8192 * partitions


async def test_a_server_that_does_not_count_rows_knows_none(dsn: str, table: Table) -> None:
    table.sql("SELECT 1")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{owner.info.dbname}" SET track_counts = off')
    async with supervisor(dsn) as me:
        assert {(size.rows, size.dead_rows) for size in (await me.store.burden()).tables} == {(None, None)}


async def test_no_lock_keeps_it_waiting(dsn: str, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.execute("LOCK TABLE scheduled_tasks, pgsched_failures, pgsched_supervisors IN ACCESS EXCLUSIVE MODE")
    store = Store(dsn, db_timeout=5.0)
    try:
        assert [size.table for size in (await store.burden()).tables] == TABLES
    finally:
        await store.close()
        other.rollback()
