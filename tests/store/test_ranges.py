"""Ended tasks stand in ranges by the time of their end: how those are made ahead, and go as a whole."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.ops.telemetry import Telemetry
from pgsched.store import admin, schema
from pgsched.supervisor.pruning import Pruner
from tests.article import text
from tests.store.desk import KINDS, Table, completed, supervisor
from tests.support import Server, eventually

Connect = Callable[..., psycopg.Connection]
HOUR, DAY = 3600.0, 86400.0
WHERE = "SELECT tableoid::regclass::text FROM scheduled_tasks WHERE id = %s"
REST = "scheduled_tasks_ended_rest"
PATIENT = "ALTER FUNCTION pgsched_{}_range SET lock_timeout = '1min'"
"""For a test that lets a call wait, or one that must not wait at all."""


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


def ranges(table: Table) -> list[tuple[str, datetime]]:
    return [(name, upper) for name, upper in table.sql("SELECT name, upper FROM pgsched_ranges() ORDER BY upper")]


def make_old_range(table: Table, days: int) -> str:
    """A range of a day's width that lies in the past, as one that was made long ago does by now."""
    day = f"date_bin('1 day', now(), '2001-01-01Z') - interval '{days} days'"
    [[first, last]] = table.sql(f"SELECT ({day})::text, ({day} + interval '1 day')::text")
    name = f"scheduled_tasks_ended_{days}_days_ago"
    table.sql(f"CREATE TABLE {name} PARTITION OF scheduled_tasks_ended FOR VALUES FROM ('{first}') TO ('{last}')")
    return name


def days_ago(table: Table, days: int) -> str:
    """A moment in the range of so many days ago."""
    [[moment]] = table.sql(
        f"SELECT (date_bin('1 day', now(), '2001-01-01Z') - interval '{days} days' + interval '1 hour')::text"
    )
    return str(moment)


class TestMaking:
    async def test_as_far_ahead_as_asked_without_a_gap(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            made = [await me.store.make_range(DAY, 3 * DAY) for _ in range(5)]
        [[midnight]] = table.sql("SELECT date_bin('1 day', now(), '2001-01-01Z')")
        assert made[-1] is None
        found = ranges(table)
        assert [name for name, _ in found] == made[:4]
        assert [(upper - midnight).days for _, upper in found] == [1, 2, 3, 4]
        assert found[0][0] == f"scheduled_tasks_ended_{midnight.astimezone(UTC):%Y%m%d_%H%M}"

    async def test_every_end_finds_its_range(self, dsn: str, table: Table) -> None:
        ids = table.insert(4)
        async with supervisor(dsn) as me:
            today = await me.store.make_range(DAY, DAY)
            claims = await me.claim()
            await me.settle(*[kind(claim) for kind, claim in zip(KINDS, claims, strict=True)])
        table.sql("UPDATE scheduled_tasks SET status = 'completed', updated_at = now() WHERE status = 'queued'")
        assert [table.sql(WHERE, task_id) for task_id in ids] == [[(today,)]] * 4

    @pytest.mark.parametrize("time", ["infinity", "-infinity", "2020-01-01Z", "2999-01-01Z"])
    async def test_an_end_that_has_no_range_stands_in_the_rest(self, dsn: str, table: Table, time: str) -> None:
        async with supervisor(dsn) as me:
            await me.store.make_range(DAY, DAY)
        [task_id] = table.insert(status="failed", finished_at=time)
        assert table.sql(WHERE, task_id) == [(REST,)]
        assert table.sql("SELECT status FROM scheduled_tasks WHERE id = %s", task_id) == [("failed",)]

    async def test_where_the_rest_has_rows_no_range_is_made(self, dsn: str, table: Table) -> None:
        table.insert(3, status="completed", finished_at="now")
        table.insert(status="paused", finished_at="tomorrow")
        async with supervisor(dsn) as me:
            made = [await me.store.make_range(DAY, 3 * DAY) for _ in range(3)]
        assert made[2] is None
        [[midnight]] = table.sql("SELECT date_bin('1 day', now(), '2001-01-01Z')")
        assert [(upper - midnight).days for _, upper in ranges(table)] == [3, 4]

    async def test_another_width_goes_on_where_the_last_range_ends(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            while await me.store.make_range(DAY, DAY):
                pass
            while await me.store.make_range(7 * DAY, 21 * DAY):
                pass
            while await me.store.make_range(HOUR, 60 * DAY):
                pass
        uppers = [upper for _, upper in ranges(table)]
        weekly = [upper for upper in uppers[2:] if upper.hour == 0 and upper.weekday() == 0]
        assert len(weekly) >= 3
        assert len(set(uppers)) == len(uppers) > 24

    async def test_one_at_a_time(self, dsn: str, table: Table, connect: Connect) -> None:
        make_old_range(table, 3)
        other = connect(autocommit=False)
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('pgsched ranges', 0))")
        async with supervisor(dsn) as me:
            assert await me.store.make_range(DAY, DAY) is None
            assert await me.store.drop_range(DAY) is None
            other.rollback()
            assert await me.store.make_range(DAY, DAY)
            assert await me.store.drop_range(DAY)

    async def test_it_waits_for_no_reader_and_lets_settles_pass(self, dsn: str, table: Table, connect: Connect) -> None:
        table.insert(1)
        reader = connect(autocommit=False)
        reader.execute("SELECT FROM scheduled_tasks WHERE id = 1")
        async with supervisor(dsn) as me:
            assert await me.store.make_range(DAY, DAY) is None
            [claim] = await me.claim()
            assert await me.settle(completed(claim)) == [True]
            reader.rollback()
            table.sql("DELETE FROM scheduled_tasks WHERE status = 'completed'")
            assert await me.store.make_range(DAY, DAY)

    def test_the_rest_is_not_read(self, table: Table) -> None:
        """It may hold millions of rows, and is locked against settles meanwhile."""
        heard: list[str | None] = []
        table.connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
        table.sql("SET client_min_messages = 'debug1'")
        assert table.sql("SELECT pgsched_make_range('1 day', '1 day')") != [(None,)]
        told = f'updated partition constraint for default partition "{REST}" is implied by existing constraints'
        assert told in heard
        table.sql("SET client_min_messages = 'notice'")
        # What the CHECK told was for that moment only.
        table.insert(status="failed", finished_at="infinity")
        assert table.sql("SELECT pgsched_in_range(now())") == [(False,)]

    @pytest.mark.parametrize("status", ["failed", "paused"])
    def test_a_row_that_comes_while_it_waits_for_the_lock(
        self, dsn: str, table: Table, connect: Connect, server: Server, status: str
    ) -> None:
        table.sql(PATIENT.format("make"))
        writer = connect(autocommit=False)
        writer.execute("INSERT INTO scheduled_tasks (task_type, run_at, status) VALUES ('a', now(), %s)", [status])
        with ThreadPoolExecutor() as threads:
            making = threads.submit(table.sql, "SELECT pgsched_make_range('1 day', '1 day')")
            eventually(lambda: server.waits_for_lock(dsn))
            writer.commit()
            assert making.result(10) != [(None,)]
        [[midnight]] = table.sql("SELECT date_bin('1 day', now(), '2001-01-01Z')")
        assert [(upper - midnight).days for _, upper in ranges(table)] == [2]

    def test_under_another_isolation_none_is_made_or_dropped(self, table: Table) -> None:
        """It would not see what was written while it waited for the lock."""
        make_old_range(table, 3)
        table.sql("SET default_transaction_isolation = 'repeatable read'")
        assert table.sql("SELECT pgsched_make_range('1 day', '1 day')") == [(None,)]
        assert table.sql("SELECT * FROM pgsched_drop_range('1 day')") == []

    async def test_a_settle_that_is_under_way_is_no_obstacle(self, dsn: str, table: Table, connect: Connect) -> None:
        """What an article's worker or a settle locks while it writes: the table, and the range that it writes to."""
        make_old_range(table, 1)
        writer = connect(autocommit=False)
        writer.execute(
            "INSERT INTO scheduled_tasks_ended (task_type, run_at, status, finished_at)"
            " VALUES ('a', now(), 'failed', %s)",
            [days_ago(table, 1)],
        )
        async with supervisor(dsn) as me:
            assert await me.store.make_range(DAY, DAY)
        writer.rollback()


class TestDropping:
    async def test_only_ranges_that_are_old_as_a_whole(self, dsn: str, table: Table) -> None:
        names = {days: make_old_range(table, days) for days in (3, 2, 1, 0)}
        kept = [table.insert(status="failed", finished_at=days_ago(table, days))[0] for days in (2, 1, 0)]
        gone = table.insert(50, status="completed", finished_at=days_ago(table, 3))
        table.sql("ANALYZE scheduled_tasks")
        async with supervisor(dsn) as me:
            assert await me.store.drop_range(2 * DAY) == (names[3], 50)
            assert await me.store.drop_range(2 * DAY) is None
        assert sorted(task_id for (task_id,) in table.sql("SELECT id FROM scheduled_tasks")) == kept
        assert gone[0] not in kept

    async def test_what_has_not_ended_yet_is_no_range_to_drop(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            while await me.store.make_range(DAY, 3 * DAY):
                pass
            with pytest.raises(DatabaseError, match="older_than is negative"):
                await me.store.drop_range(-3650 * DAY)
        assert len(ranges(table)) == 4

    async def test_a_status_that_is_nobodys_keeps_its_range(self, dsn: str, table: Table) -> None:
        make_old_range(table, 3)
        table.insert(5, status="completed", finished_at=days_ago(table, 3))
        strange = [
            table.insert(status=status, updated_at=days_ago(table, 3))[0] for status in ("", "cancelled2", "paused")
        ]
        other = make_old_range(table, 2)
        for task_id in strange:
            async with supervisor(dsn) as me:
                assert await me.store.drop_range(DAY) in ((other, 0), None)
                assert (await me.store.prune(DAY, 10))[0] in (5, 0)
            assert table.row(task_id).id == task_id
            table.sql("DELETE FROM scheduled_tasks WHERE id = %s", task_id)
        async with supervisor(dsn) as me:
            assert await me.store.drop_range(DAY)

    async def test_failures_go_with_their_tasks_and_only_they(self, dsn: str, table: Table) -> None:
        make_old_range(table, 3)
        gone = table.insert(3, status="failed", finished_at=days_ago(table, 3))
        kept = table.insert(2) + table.insert(2, status="failed", finished_at=days_ago(table, 1))
        for task_id in gone + kept:
            table.sql(
                "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, seconds, failed_at)"
                " VALUES (%s, 1, 1, 'a', 'raised', 'boom', 1, %s)",
                task_id,
                days_ago(table, 3),
            )
        async with supervisor(dsn) as me:
            assert await me.store.drop_range(DAY)
            after: int | None = 0
            while after is not None:
                after = await me.store.prune_failures(DAY, 2, after)
        assert sorted(task_id for (task_id,) in table.sql("SELECT task_id FROM pgsched_failures")) == sorted(kept)

    async def test_a_range_in_use_is_left_and_nobody_waits_for_long(
        self, dsn: str, table: Table, connect: Connect
    ) -> None:
        make_old_range(table, 3)
        table.insert(3)
        table.insert(status="failed", finished_at=days_ago(table, 3))
        reader = connect(autocommit=False)
        reader.execute("SELECT FROM scheduled_tasks WHERE id = 1")
        async with supervisor(dsn) as me, supervisor(dsn) as pruner:
            assert await pruner.store.drop_range(DAY) is None
            claims = await me.claim()
            assert await me.settle(*map(completed, claims)) == [True] * 3
            reader.rollback()
            assert await pruner.store.drop_range(DAY)

    @pytest.mark.parametrize("busy", ["scheduled_tasks_ended_3_days_ago", REST])
    async def test_it_waits_for_nothing_more_while_settles_wait_for_it(
        self, dsn: str, table: Table, connect: Connect, busy: str
    ) -> None:
        make_old_range(table, 3)
        table.sql(PATIENT.format("drop"))
        vacuum = connect(autocommit=False)
        vacuum.execute(f"LOCK TABLE {busy} IN SHARE UPDATE EXCLUSIVE MODE")
        async with supervisor(dsn, db_timeout=5) as me:
            assert await me.store.drop_range(DAY) is None
            vacuum.rollback()
            assert await me.store.drop_range(DAY)

    def test_a_status_that_comes_while_it_waits_for_the_lock(
        self, dsn: str, table: Table, connect: Connect, server: Server
    ) -> None:
        make_old_range(table, 3)
        table.sql(PATIENT.format("drop"))
        writer = connect(autocommit=False)
        writer.execute(
            "INSERT INTO scheduled_tasks (task_type, run_at, status, updated_at) VALUES ('a', now(), 'paused', %s)",
            [days_ago(table, 3)],
        )
        with ThreadPoolExecutor() as threads:
            dropping = threads.submit(table.sql, "SELECT * FROM pgsched_drop_range('1 day')")
            eventually(lambda: server.waits_for_lock(dsn))
            writer.commit()
            assert dropping.result(10) == []
        assert table.statuses() == {"paused": 1}

    def test_a_settle_that_waits_for_a_drop_goes_on(
        self, table: Table, connect: Connect, server: Server, dsn: str
    ) -> None:
        """The other way round: who writes while a range is dropped waits for the commit, and fails by nothing."""
        make_old_range(table, 3)
        dropping = connect(autocommit=False)
        dropping.execute("SELECT pgsched_drop_range('1 day')")
        insert = "INSERT INTO scheduled_tasks (task_type, run_at, status) VALUES ('a', now(), 'failed')"
        with ThreadPoolExecutor() as threads:
            writing = threads.submit(connect().execute, insert)
            while not server.waits_for_lock(dsn):
                assert not writing.done()
            dropping.commit()
            writing.result(10)
        assert table.statuses() == {"failed": 1}

    def test_by_hand_to_the_second(self, table: Table, connect: Connect) -> None:
        make_old_range(table, 3)
        make_old_range(table, 2)
        table.insert(4, status="completed", finished_at=days_ago(table, 3))
        [young] = table.insert(status="failed", run_at="now()", finished_at=days_ago(table, 2))
        table.insert(2, status="failed", finished_at=days_ago(table, 9))
        table.sql("ANALYZE scheduled_tasks")
        connection = connect()
        assert admin.drop_ranges(connection, 2 * DAY) == (4, None)
        assert admin.prune(connection, 8 * DAY) == 2
        assert table.sql("SELECT id FROM scheduled_tasks") == [(young,)]
        assert admin.prune(connection, DAY) == 1
        assert admin.drop_ranges(connection, 0.0) == (1, None)


async def test_batches_reach_into_the_right_range_only(dsn: str, table: Table) -> None:
    """The first row of every range lies at the same place."""
    for days in (4, 3, 2):
        make_old_range(table, days)
    oldest, older, old = (
        table.insert(1, status="completed", finished_at=days_ago(table, days))[0] for days in (4, 3, 2)
    )
    [rest] = table.insert(status="completed", finished_at=days_ago(table, 9))
    assert len(set(table.sql("SELECT ctid FROM scheduled_tasks"))) == 1
    async with supervisor(dsn) as me:
        for expected in (rest, oldest, older):
            before = {task_id for (task_id,) in table.sql("SELECT id FROM scheduled_tasks")}
            assert (await me.store.prune(DAY, 1))[0] == 1
            assert before - {task_id for (task_id,) in table.sql("SELECT id FROM scheduled_tasks")} == {expected}
    assert table.sql("SELECT id FROM scheduled_tasks") == [(old,)]


class Heard(Telemetry):
    """Only the events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, name: str, level: int = 0, **fields: object) -> None:
        self.names.append(name)


async def test_a_turn_of_the_duty_makes_drops_and_deletes(dsn: str, table: Table) -> None:
    for days in (9, 8, 7):
        make_old_range(table, days)
    table.insert(5, status="completed", finished_at=days_ago(table, 9))
    table.insert(3, status="completed", finished_at=days_ago(table, 10))
    kept = table.insert(2, status="completed", finished_at=days_ago(table, 7))
    heard = Heard()
    async with supervisor(dsn) as me:
        await Pruner(me.store, heard, older_than=7 * DAY).turn()
    assert sorted(task_id for (task_id,) in table.sql("SELECT id FROM scheduled_tasks")) == kept
    assert heard.names == ["range_dropped"] * 2 + ["pruned"] + ["range_made"] * 5


async def test_a_range_that_cannot_be_made_is_told_and_nothing_else_suffers(empty_dsn: str) -> None:
    """The owner of an adopted table may have no right to create another beside it."""
    owner = f"pgsched_test_owner_{os.getpid()}"
    heard = Heard()
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        table = Table(connection)
        table.sql(text("snippet_1"))
        table.sql(f"CREATE ROLE {owner}")
        table.sql(f"ALTER TABLE scheduled_tasks OWNER TO {owner}")
        try:
            schema.migrate(empty_dsn)
            table.insert(3, status="completed", finished_at="2020-01-01Z")
            async with supervisor(empty_dsn) as me:
                await Pruner(me.store, heard, older_than=7 * DAY).turn()
                assert me.store.outage.count == 0
            assert table.statuses() == {}
        finally:
            table.sql(f"DROP OWNED BY {owner} CASCADE")
            table.sql(f"DROP ROLE {owner}")
    assert heard.names == ["pruned", "ranges_not_made"]


async def test_a_range_that_a_trigger_of_yours_forbids_is_no_outage(dsn: str, table: Table) -> None:
    """Whatever kind of error it is: the server is there."""
    table.sql(
        "CREATE FUNCTION no_more() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'not now' USING ERRCODE = 'object_not_in_prerequisite_state'; END $$"
    )
    table.sql(
        "CREATE EVENT TRIGGER no_more ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION no_more()"
    )
    heard = Heard()
    async with supervisor(dsn) as me:
        await Pruner(me.store, heard, older_than=7 * DAY).turn()
        assert me.store.outage.count == 0
    assert heard.names == ["ranges_not_made"]


async def test_a_range_that_cannot_be_dropped_is_told_and_its_tasks_go_by_batches(dsn: str, table: Table) -> None:
    """Somebody has made a view of the oldest, which is the first to be dropped."""
    oldest, old = (make_old_range(table, days) for days in (20, 10))
    table.sql(f"CREATE VIEW looked_at AS SELECT id FROM {oldest}")
    for days in (20, 10, 30):
        table.insert(2, status="completed", finished_at=days_ago(table, days))
    heard = Heard()
    async with supervisor(dsn) as me:
        await Pruner(me.store, heard, older_than=7 * DAY).turn()
        assert me.store.outage.count == 0
    assert table.statuses() == {}
    assert {oldest, old} < {name for name, _ in ranges(table)}
    assert heard.names == ["ranges_not_dropped", "pruned"] + ["range_made"] * 5


def test_by_hand_a_range_that_cannot_be_dropped_keeps_nothing_alive(table: Table, connect: Connect) -> None:
    young, oldest = (make_old_range(table, days) for days in (10, 20))
    for days in (20, 10, 9):
        table.insert(2, status="failed", run_at="now()", finished_at=days_ago(table, days))
    table.sql(f"CREATE VIEW looked_at AS SELECT id FROM {young}")
    table.sql("ANALYZE scheduled_tasks")
    connection = connect()
    dropped = admin.drop_ranges(connection, 5 * DAY)
    assert (dropped.tasks, [name for name, _ in ranges(table)]) == (2, [young])
    assert "cannot drop table" in str(dropped.refused)
    assert admin.prune(connection, 5 * DAY) == 4
    assert oldest not in str(dropped.refused)


async def test_ranges_are_made_although_what_is_old_cannot_be_deleted(dsn: str, table: Table) -> None:
    table.insert(3, status="completed", finished_at="2020-01-01Z")
    table.sql(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it is kept'; END $$"
    )
    table.sql(f"CREATE TRIGGER keep BEFORE DELETE ON {REST} FOR EACH ROW EXECUTE FUNCTION keep()")
    heard = Heard()
    async with supervisor(dsn) as me:
        with pytest.raises(DatabaseError, match="it is kept"):
            await Pruner(me.store, heard, older_than=7 * DAY).turn()
    assert heard.names == ["range_made"] * 5


async def test_each_batch_begins_where_the_one_before_has_ended(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's old snapshot keeps an index entry of each row that is deleted, and they would all be walked over."""
    begins: list[str | None] = []
    async with supervisor(dsn) as me:

        async def prune(older_than: float, limit: int, begin: str | None = None) -> tuple[int, str | None]:
            begins.append(begin)
            return (limit, "2020-01-01") if len(begins) < 3 else (0, None)

        monkeypatch.setattr(me.store, "prune", prune)
        await Pruner(me.store, Heard(), older_than=60.0).turn()
    assert begins == [None, "2020-01-01", "2020-01-01"]


async def test_tables_that_are_published_take_everything_that_is_written(
    dsn: str, table: Table, connect: Connect
) -> None:
    """PostgreSQL lets nobody update or delete rows of a published table that has neither a key nor another identity."""
    table.sql("CREATE PUBLICATION everything FOR ALL TABLES")
    try:
        async with supervisor(dsn) as me:
            # Beside the rest, today's range.
            assert await me.store.make_range(DAY, DAY)
            for finished_at in (days_ago(table, 9), days_ago(table, 0)):
                old, again = table.insert(2, status="failed", finished_at=finished_at)
                table.sql("UPDATE scheduled_tasks SET status = 'completed' WHERE id = %s", old)
                assert admin.retry(connect(), admin.Filter(ids=[again])).ids == [again]
            queued = table.insert()[0]
            others = [claim for claim in await me.claim() if claim.task_id != queued]
            assert await me.settle(*map(completed, others)) == [True] * 2
            table.sql(text("snippet_5_complete").replace("$1", "%s"), queued)
            assert table.row(queued).status == "completed"
            assert (await me.store.prune(0.0, 10))[0] == 5
    finally:
        table.sql("DROP PUBLICATION everything")


async def test_ranges_of_an_earlier_version_get_what_a_publication_asks_for(
    server: Server, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "LATEST", 2)
        schema.migrate(empty_dsn)
    server.sql("SELECT pgsched_make_range('1 day', '1 day')", dsn=empty_dsn)
    schema.migrate(empty_dsn)
    server.sql("SELECT pgsched_make_range('1 day', '2 days')", dsn=empty_dsn)
    identities = server.sql(
        "SELECT relreplident::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'scheduled_tasks_ended'::regclass",
        dsn=empty_dsn,
    )
    assert identities == [("f",)] * 3


async def test_what_is_kept_briefly_stands_in_no_range(dsn: str, table: Table) -> None:
    table.insert(3, status="completed", finished_at="2020-01-01Z")
    async with supervisor(dsn) as me:
        await Pruner(me.store, Heard(), older_than=60.0).turn()
    assert ranges(table) == []
    assert table.statuses() == {}
