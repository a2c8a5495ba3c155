"""Somebody else's long transaction keeps every dead row; claims must not walk over them again and again."""

from collections.abc import Callable

import psycopg
import pytest

from pgsched.model import Verdict
from tests.store.desk import WANT, Table, completed, supervisor

TASKS, BATCH = 12_000, 100
GROWTH = 1.1
"""Times as many pages for the last tenth as for the second: what is stated in docs/limits.md."""


@pytest.fixture
def table(connect: Callable[..., psycopg.Connection]) -> Table:
    return Table(connect())


async def test_f50_an_old_snapshot_does_not_slow_claims(
    dsn: str, table: Table, connect: Callable[..., psycopg.Connection]
) -> None:
    """F50: and a task costs one update, one row that goes and one that comes, however long it takes."""
    table.insert(TASKS)
    for (name,) in table.sql("SELECT relid::regclass::text FROM pg_statio_user_tables"):
        table.sql(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    reader = connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT 1 FROM pg_class LIMIT 1")

    async def pages(connection: psycopg.AsyncConnection) -> int:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        cursor = await connection.execute(
            "SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))"
            " FROM pg_statio_user_tables"
        )
        return int((await cursor.fetchall())[0][0])

    spent = []
    async with supervisor(dsn) as me:
        settled: list[Verdict] = []
        want = WANT
        for _ in range(10):
            before = await me.store._work.call(pages)
            for _ in range(TASKS // BATCH // 10):
                exchanged = await me.exchange(settled, [want], BATCH)
                settled = [completed(claim) for claim in exchanged.claims]
                assert len(settled) == BATCH
                # As a supervisor does.
                last = exchanged.claims[-1]
                want = WANT._replace(floor_run_at=last.run_at, floor_id=last.task_id)
            spent.append(await me.store._work.call(pages) - before)
        await me.settle(*settled)
        await me.store._work.call(pages)
    print(f"pages for each tenth of {TASKS} tasks: {spent}")
    assert spent[-1] < GROWTH * spent[1]
    [(updated, deleted)] = table.sql(
        "SELECT n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'scheduled_tasks_live'"
    )
    assert (updated, deleted) == (TASKS, TASKS)
    reader.rollback()
