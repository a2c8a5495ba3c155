"""The live tasks in several partitions: nothing but the order of claims may tell the difference."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from pgsched.errors import DatabaseError, SchemaError
from pgsched.model import Verdict, Want
from pgsched.store import admin, check
from pgsched.store.admin import Filter
from pgsched.store.arrays import numbers, texts
from pgsched.store.claims import claim_statement
from pgsched.store.schema import migrate
from pgsched.store.sql import load
from pgsched.store.verdicts import settle_completed_statement
from tests.article import text
from tests.store.desk import KINDS, WANT, Table, completed, released, retry, supervisor
from tests.store.test_plans import CLAIM, nodes
from tests.support import Server

Connect = Callable[..., psycopg.Connection]
PARTS = 4


FUNCTION = "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
OBSTACLES = [
    ("CREATE INDEX mine ON {} (error_log)", "index mine"),
    ("CREATE UNIQUE INDEX mine ON {} (task_type, run_at)", "index mine"),
    ("ALTER TABLE {} ADD CONSTRAINT mine UNIQUE (id, task_type)", "constraint mine on table {}"),
    ("ALTER TABLE {} ADD CONSTRAINT mine CHECK (priority > -5)", "constraint mine on table {}"),
    (FUNCTION + "; CREATE TRIGGER mine AFTER UPDATE ON {} EXECUTE FUNCTION mine()", "trigger mine on table {}"),
    ("CREATE RULE mine AS ON DELETE TO {} DO ALSO NOTHING", "rule mine on table {}"),
    ("CREATE POLICY mine ON {}", "policy mine on table {}"),
    ("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", "row level security on table {}"),
    ("CREATE PUBLICATION mine FOR TABLE {}", "publication of table {} in publication mine"),
    ("CREATE STATISTICS mine ON task_type, queue FROM {}", "statistics object mine"),
    ("CREATE VIEW mine AS SELECT id FROM {}", "view mine"),
    ("ALTER TABLE {} SET (autovacuum_enabled = off)", "storage parameter autovacuum_enabled=off of table {}"),
    ("ALTER TABLE {} SET (fillfactor = 90)", "storage parameter fillfactor=90 of table {}"),
]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


@pytest.fixture
def split(dsn: str) -> str:
    """The DSN of a database in which the live tasks are split."""
    migrate(dsn, partitions=PARTS)
    return dsn


def places(table: Table) -> dict[int, str]:
    return dict(table.sql("SELECT id, tableoid::regclass::text FROM scheduled_tasks_live"))


class TestSplitting:
    def test_rows_move_there_and_back(self, dsn: str, table: Table) -> None:
        ids = table.insert(40) + table.insert(3, status="processing", claimed_by=7, fence=5)
        ended = table.insert(5, status="failed")
        before = table.sql("SELECT * FROM scheduled_tasks ORDER BY id")
        assert migrate(dsn, partitions=PARTS)[-1] == "moved 43 live tasks from one table to 4 partitions"
        found = places(table)
        assert {task_id: f"scheduled_tasks_live_{task_id % PARTS}" for task_id in ids} == found
        assert table.sql("SELECT * FROM scheduled_tasks ORDER BY id") == before
        assert migrate(dsn, partitions=PARTS)[-1] == "the live tasks are in 4 partitions already"
        assert migrate(dsn, partitions=3)[-1] == "moved 43 live tasks from 4 partitions to 3 partitions"
        assert len(set(places(table).values())) == 3
        assert migrate(dsn, partitions=1)[-1] == "moved 43 live tasks from 3 partitions to one table"
        assert set(places(table).values()) == {"scheduled_tasks_live"}
        assert table.sql("SELECT * FROM scheduled_tasks ORDER BY id") == before
        assert len(ended) == 5
        assert [problem for problem in check.check(dsn) if "index" in problem.text] == []

    def test_the_tables_are_as_they_were(self, dsn: str, server: Server) -> None:
        columns = (
            "SELECT attname, atttypid::regtype::text, attnotnull, pg_get_expr(adbin, adrelid) FROM pg_attribute"
            " LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
            " WHERE attrelid = 'scheduled_tasks_live'::regclass AND attnum > 0 ORDER BY attnum"
        )
        indexes = (
            "SELECT indexdef FROM pg_indexes WHERE tablename = 'scheduled_tasks_live' ORDER BY 1",
            """SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
               WHERE conrelid = 'scheduled_tasks_live'::regclass ORDER BY 1""",
            "SELECT reloptions FROM pg_class WHERE relname = 'scheduled_tasks_live'",
            columns,
        )
        before = [server.sql(query, dsn=dsn) for query in indexes]
        migrate(dsn, partitions=2)
        migrate(dsn, partitions=1)
        assert [server.sql(query, dsn=dsn) for query in indexes] == before

    def test_rights_stay(self, dsn: str, server: Server, table: Table) -> None:
        table.sql("GRANT SELECT, UPDATE ON scheduled_tasks_live TO pg_monitor WITH GRANT OPTION")
        table.sql("GRANT INSERT (id), SELECT (id, status) ON scheduled_tasks_live TO pg_monitor, PUBLIC")
        rights = (
            "SELECT attname, held.* FROM ("
            " SELECT NULL::name AS attname, relacl AS acl FROM pg_class WHERE relname = 'scheduled_tasks_live'"
            " UNION ALL SELECT attname, attacl FROM pg_attribute WHERE attrelid = 'scheduled_tasks_live'::regclass"
            ") AS given, aclexplode(acl) AS held ORDER BY attname, grantee, privilege_type"
        )
        before = table.sql(rights)
        for partitions in (2, 1):
            migrate(dsn, partitions=partitions)
            assert table.sql(rights) == before
        assert [row[0] for row in before].count("id") == 4

    def test_rights_on_single_parts_stay_while_there_is_such_a_part(self, dsn: str, table: Table) -> None:
        migrate(dsn, partitions=3)
        table.sql("GRANT SELECT ON scheduled_tasks_live_0 TO pg_monitor WITH GRANT OPTION")
        table.sql("GRANT UPDATE (status), SELECT ON scheduled_tasks_live_1, scheduled_tasks_live_2 TO PUBLIC")
        rights = (
            "SELECT relname, attname, held.* FROM ("
            " SELECT relname, relowner, NULL::name AS attname, relacl AS acl FROM pg_class"
            " UNION ALL SELECT relname, relowner, attname, attacl"
            " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
            ") AS given, aclexplode(acl) AS held WHERE relname ~ '^scheduled_tasks_live_[0-9]$'"
            " AND grantee <> relowner ORDER BY relname, attname, grantee, privilege_type"
        )
        before = table.sql(rights)
        assert [row[0][-1] for row in before] == ["0", "1", "1", "2", "2"]
        migrate(dsn, partitions=4)
        assert table.sql(rights) == before
        migrate(dsn, partitions=2)
        assert table.sql(rights) == before[:3]
        migrate(dsn, partitions=1)
        migrate(dsn, partitions=2)
        assert table.sql(rights) == []

    @pytest.mark.parametrize("partitions", [1, 2])
    @pytest.mark.parametrize(("statement", "named"), OBSTACLES)
    def test_what_somebody_has_hung_on_it_is_named(
        self, dsn: str, table: Table, statement: str, named: str, partitions: int
    ) -> None:
        migrate(dsn, partitions=partitions)
        [leaf] = table.sql("SELECT relid::text FROM pg_partition_tree('scheduled_tasks_live') WHERE isleaf LIMIT 1")
        [task_id] = table.insert()
        table.sql(statement.format(*leaf))
        with pytest.raises(SchemaError) as caught:
            migrate(dsn, partitions=3)
        words = f"the live tasks cannot be moved while their tables have: {named.format(*leaf)}; remove them"
        assert str(caught.value).startswith(words)
        assert list(places(table)) == [task_id]

    def test_what_hangs_on_the_whole_table_comes_back(self, dsn: str, table: Table) -> None:
        table.sql("CREATE TABLE kinds (name varchar PRIMARY KEY)")
        table.sql("INSERT INTO kinds VALUES ('a')")
        table.sql(FUNCTION)
        table.sql("CREATE INDEX mine ON scheduled_tasks (task_type)")
        table.sql("CREATE TRIGGER mine AFTER UPDATE ON scheduled_tasks FOR EACH ROW EXECUTE FUNCTION mine()")
        table.sql("ALTER TABLE scheduled_tasks ADD CHECK (max_retries < 10)")
        table.sql("ALTER TABLE scheduled_tasks ADD FOREIGN KEY (task_type) REFERENCES kinds")
        table.insert(4)
        for partitions in (3, 2, 1):
            assert migrate(dsn, partitions=partitions)[-1].startswith("moved 4 live tasks")
            found = table.sql(
                "SELECT count(DISTINCT indexrelid), count(DISTINCT tg.oid), count(DISTINCT con.oid)"
                " FROM pg_partition_tree('scheduled_tasks_live')"
                " JOIN pg_index ON indrelid = relid AND pg_get_indexdef(indexrelid) LIKE '%%(task_type)'"
                " JOIN pg_trigger tg ON tgrelid = relid AND NOT tgisinternal"
                " JOIN pg_constraint con ON conrelid = relid AND (contype = 'f' OR conname LIKE '%%max_retries_check1')"
                " WHERE isleaf"
            )
            assert found == [(partitions, partitions, 2 * partitions)]

    def test_a_table_in_use_is_left_alone(self, dsn: str, table: Table, connect: Connect) -> None:
        table.insert(3)
        user = connect(autocommit=False)
        user.execute("SELECT FROM scheduled_tasks")
        with pytest.raises(DatabaseError, match=r"cannot lock the tables within 0\.2 s"):
            migrate(dsn, timeout=0.2, partitions=2)
        user.rollback()
        assert set(places(table).values()) == {"scheduled_tasks_live"}

    async def test_under_a_supervisor_that_holds_claims(self, dsn: str, table: Table) -> None:
        ids = table.insert(40)
        async with supervisor(dsn) as me:
            claims = await me.claim(total=20)
            await asyncio.to_thread(migrate, dsn, 10.0, PARTS)
            assert await me.settle(*map(completed, claims)) == [True] * 20
            claims = await me.claim()
            await asyncio.to_thread(migrate, dsn, 10.0, 1)
            assert await me.settle(*map(completed, claims)) == [True] * 20
        assert table.statuses() == {"completed": len(ids)}


class TestKeys:
    def test_a_key_is_unique_across_all(self, split: str, table: Table, connect: Connect) -> None:
        connection = connect()
        names = [f"key {number}" for number in range(30)]
        query = "INSERT INTO scheduled_tasks (task_type, run_at, unique_key) VALUES ('a', now(), %s)"
        for _ in range(3):
            for name in names:
                try:
                    connection.execute(query, [name])
                except psycopg.errors.UniqueViolation:
                    continue
        assert table.statuses() == {"queued": 30}
        assert len(set(places(table).values())) == PARTS


class TestTheWayOfATask:
    async def test_a_supervisor_that_is_bound_to_none_keeps_the_order(self, split: str, table: Table) -> None:
        ids = table.insert(40, run_at="now() - interval '1 minute' * i")
        async with supervisor(split) as me:
            claims = await me.claim(total=25)
            assert [claim.task_id for claim in claims] == ids[:-26:-1]

    async def test_every_kind_of_settle(self, split: str, table: Table) -> None:
        ids = table.insert(40)
        async with supervisor(split) as me:
            claims = await me.claim()
            assert [claim.task_id for claim in claims] == ids
            verdicts = [KINDS[claim.task_id // PARTS % 4](claim) for claim in claims]
            assert await me.settle(*verdicts) == [True] * 40
            assert await me.settle(*verdicts) == [False] * 40
            assert await me.settle(*verdicts, resent=True) == [True] * 40
        assert set(table.statuses()) == {"completed", "failed", "queued"}

    async def test_a_place_that_is_one_in_every_partition(self, split: str, table: Table) -> None:
        """The first rows of all lie at (0,1): a claim and a settle of one must not touch the others."""
        ids = table.insert(PARTS)
        assert len(set(table.sql("SELECT ctid FROM scheduled_tasks_live"))) == 1
        async with supervisor(split) as me:
            [claim] = await me.claim(total=1)
            assert table.statuses() == {"processing": 1, "queued": PARTS - 1}
            others = [claim, *await me.claim()]
            assert len(others) == PARTS
            assert await me.settle(completed(claim)) == [True]
            assert table.statuses() == {"completed": 1, "processing": PARTS - 1}
        assert claim.task_id in ids

    async def test_reap_confirm_strays_cancel_and_retry(self, split: str, table: Table, connect: Connect) -> None:
        table.insert(20)
        async with supervisor(split) as dead, supervisor(split) as me:
            await dead.claim(total=12)
            table.expire(dead.id)
            reaped = await me.store.reap(me.id, 100)
            assert len(reaped) == 12
            held = [(claim.task_id, claim.fence) for claim in reaped]
            assert await me.store.confirm(me.id, held) == set(held)
            assert await me.settle(retry(reaped[0]), released(reaped[1])) == [True] * 2
            lost = await me.store.strays(me.id, [claim.task_id for claim in reaped[5:]])
            assert await me.settle(*map(released, lost)) == [True] * 3
            ids = [claim.task_id for claim in reaped[5:]]
            assert admin.cancel(connect(), Filter(ids=ids)).ids == sorted(ids)
            assert admin.retry(connect(), Filter(ids=ids)).ids == sorted(ids)
        assert table.statuses() == {"queued": 20}

    async def test_beside_workers_written_after_the_article(self, split: str, table: Table, connect: Connect) -> None:
        rows = 600
        table.insert(rows)
        done: Counter[int] = Counter()
        claim, complete = (text(f"snippet_5_{name}").encode() for name in ("claim", "complete"))

        def work(connection: psycopg.Connection) -> None:
            cursor = psycopg.RawCursor(connection)
            empty = 0
            while empty < 3:
                try:
                    found = cursor.execute(claim, (1337,)).fetchone()
                    if found is None:
                        empty += 1
                        continue
                    done[found[0]] += 1
                    cursor.execute(complete, (found[0],))
                except psycopg.errors.SerializationFailure:
                    continue

        threads = [threading.Thread(target=work, args=(connect(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        async with supervisor(split) as me:
            verdicts: list[Verdict] = []
            empty = 0
            while empty < 3 or verdicts:
                answer = await me.exchange(verdicts, [WANT._replace(quota=20)], 20)
                assert all(answer.settled)
                done.update(each.task_id for each in answer.claims)
                verdicts = [completed(each) for each in answer.claims]
                empty = 0 if answer.claims else empty + 1
        for thread in threads:
            await asyncio.to_thread(thread.join, 30)
        assert table.statuses() == {"completed": rows}
        assert set(done.values()) == {1}
        assert len(done) == rows


class TestBound:
    async def test_discover_and_claim_see_only_their_own(self, split: str, table: Table) -> None:
        ids = table.insert(40) + table.insert(4, queue="q", priority=3)
        bound = (1, 3)
        mine = {task_id for task_id in ids if task_id % PARTS in bound}
        async with supervisor(split, partitions=bound) as me:
            groups = await me.store.discover(["a"], None)
            assert sorted((group.queue, group.partition) for group in groups) == [
                ("default", 1),
                ("default", 3),
                ("q", 1),
                ("q", 3),
            ]
            assert {group.queue for group in await me.store.discover(["a"], ["q"])} == {"q"}
            wants = [
                Want(
                    group.task_type, group.queue, group.priority, 100, group.head_run_at, group.head_id, group.partition
                )
                for group in groups
            ]
            claims = await me.claim(*wants)
            assert {claim.task_id for claim in claims} == mine
            assert all(claim.partition == claim.task_id % PARTS for claim in claims)
            assert await me.settle(*map(completed, claims)) == [True] * len(mine)
            assert await me.store.discover(["a"], None) == []
        assert table.statuses() == {"completed": len(mine), "queued": 44 - len(mine)}

    @pytest.mark.parametrize("what", ["claim", "discover", "settle_completed"])
    def test_the_other_partitions_are_not_looked_into(self, split: str, table: Table, what: str) -> None:
        name = f"{what}_in_partitions"
        table.insert(40)
        table.sql(
            "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes,"
            " lease_until) VALUES ('h', 'b', 1, 1, 1, 1, 'infinity')"
        )
        [[me]] = table.sql("SELECT id FROM pgsched_supervisors")
        parameters = claim_statement(me, 1337, [WANT._replace(partition=2)], 100)[1]
        if name == "discover_in_partitions":
            parameters = (texts(["a"]), None, numbers([2]))
        if name == "settle_completed_in_partitions":
            parameters = settle_completed_statement(me, [completed(CLAIM._replace(partition=2))])[1]
        with table.connection.transaction(force_rollback=True):
            cursor = psycopg.RawCursor(table.connection)
            cursor.execute(load("hints"), ("60000", "true", "0"))
            cursor.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + load(name), parameters)
            [[[answer]]] = cursor.fetchall()
        looked_into = {
            node["Relation Name"]
            for node in nodes(answer["Plan"])
            if node.get("Relation Name", "").startswith("scheduled_tasks")
            and node["Node Type"] != "ModifyTable"
            and node["Actual Loops"]
        }
        assert looked_into == {"scheduled_tasks_live_2"}

    async def test_a_claim_that_has_been_moved_is_settled(self, split: str, table: Table) -> None:
        table.insert(12)
        async with supervisor(split) as me:
            claims = await me.claim(*[WANT._replace(partition=part) for part in range(PARTS)])
            await asyncio.to_thread(migrate, split, 10.0, 3)
            assert await me.settle(*map(completed, claims)) == [True] * 12
            assert await me.settle(*map(completed, claims)) == [False] * 12

    async def test_one_table_is_not_searched_for_a_partition_that_is_not_there(self, dsn: str, table: Table) -> None:
        """What a bound supervisor is left with when the partitions are brought together under it."""
        table.insert(3000)
        reads = "SELECT coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'scheduled_tasks_live'"
        with table.connection.transaction():
            cursor = psycopg.RawCursor(table.connection)
            cursor.execute(load("hints"), ("60000", "true", "0"))
            for part, rows in ((1, 0), (0, 1)):
                found = cursor.execute(load("discover_in_partitions"), (texts(["a"]), None, numbers([part]))).fetchall()
                assert len(found) == rows
                [[fetched]] = table.sql(reads)
                assert fetched <= rows

    async def test_in_order_within_a_partition(self, split: str, table: Table) -> None:
        ids = table.insert(40, run_at="now() - interval '1 minute' * i")
        async with supervisor(split, partitions=(2,)) as me:
            claims = await me.claim(WANT._replace(quota=5, partition=2))
        assert [claim.task_id for claim in claims] == [task_id for task_id in ids[::-1] if task_id % PARTS == 2][:5]

    async def test_what_nobody_serves_is_named(self, split: str, table: Table, connect: Connect) -> None:
        assert admin.status(connect()).partitions == dict.fromkeys(range(PARTS), False)
        assert not [problem for problem in check.check(split) if "serves partition" in problem.text]
        async with supervisor(split) as me:
            table.sql("UPDATE pgsched_supervisors SET partitions = '{0,2}'")
            assert admin.status(connect()).partitions == {0: True, 1: False, 2: True, 3: False}
            [problem] = [problem for problem in check.check(split) if "serves partition" in problem.text]
            assert problem.text == "no live supervisor serves partition 1, 3: tasks there wait"
            table.sql("UPDATE pgsched_supervisors SET partitions = '{}' WHERE id = %s", me.id)
            assert set(admin.status(connect()).partitions.values()) == {True}
