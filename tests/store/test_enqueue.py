"""Inserting tasks over a given connection: values, transactions, keys under contention, refusals."""

import asyncio
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pgsched.errors import DatabaseError, SchemaError, UsageError
from pgsched.model import NewTask
from pgsched.store.enqueue import BATCH_CHARACTERS, BATCH_ROWS, _batches, insert, insert_async
from tests.support import Server, eventually

Connect = Callable[..., psycopg.Connection]


def plain(number: int = 0, **options: Any) -> NewTask:
    return NewTask("add", f'{{"n": {number}}}', **options)


def keyed(key: str = "k", **options: Any) -> NewTask:
    return plain(unique_key=key, **options)


def count(server: Server, dsn: str) -> int:
    found: int = server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn)
    return found


def sequence(server: Server, dsn: str) -> object:
    return server.sql("SELECT last_value, is_called FROM scheduled_tasks_id_seq", dsn=dsn)


class TestValues:
    def test_every_column_that_a_task_can_say(self, server: Server, dsn: str, connect: Connect) -> None:
        at = datetime(2031, 2, 3, 4, 5, 6, 789012, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        task = NewTask(
            "t", '{"a":["ä",1e3]}', queue="q", priority=-32768, max_retries=7, run_at=at, timeout=1.5, unique_key="k"
        )
        (task_id,) = insert(connect(), [task])
        columns = "id, task_type, payload, queue, priority, max_retries, run_at, timeout, unique_key, status, fence"
        assert server.sql(f"SELECT {columns} FROM scheduled_tasks", dsn=dsn) == [
            (task_id, "t", {"a": ["ä", 1000]}, "q", -32768, 7, at, 1.5, "k", "queued", 0)
        ]

    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_whole_timeout_and_delay_are_as_good_as_broken_ones(
        self, server: Server, dsn: str, connect: Connect, key: str | None
    ) -> None:
        insert(connect(), [plain(timeout=5, delay=60, unique_key=key), plain(timeout=0.5, delay=0.25)])
        found = server.sql("SELECT timeout, run_at > now() + '50 s' FROM scheduled_tasks ORDER BY timeout", dsn=dsn)
        assert found == [(0.5, False), (5.0, True)]

    def test_nothing_to_insert(self, server: Server, dsn: str, connect: Connect) -> None:
        assert insert(connect(), []) == []
        assert count(server, dsn) == 0

    @pytest.mark.parametrize("key", [None, "k"])
    def test_a_delay_begins_at_the_call_and_not_at_the_transaction(
        self, server: Server, dsn: str, connect: Connect, key: str | None
    ) -> None:
        connection = connect(autocommit=False)
        connection.execute("SELECT pg_sleep(0.05)")
        insert(connection, [plain(delay=3600, unique_key=key)])
        connection.commit()
        assert server.value("SELECT run_at - created_at >= '1 hour 50 milliseconds' FROM scheduled_tasks", dsn=dsn)

    def test_f55_the_sessions_time_zone_and_date_style_do_not_matter(
        self, server: Server, dsn: str, connect: Connect
    ) -> None:
        connection = connect()
        connection.execute("SET TimeZone = 'America/St_Johns'; SET DateStyle = 'SQL, DMY'")
        at = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
        insert(connection, [plain(run_at=at), keyed(run_at=at)])
        assert server.sql("SELECT DISTINCT run_at FROM scheduled_tasks", dsn=dsn) == [(at,)]

    def test_ids_come_in_the_order_of_the_tasks(self, server: Server, dsn: str, connect: Connect) -> None:
        number = 2 * BATCH_ROWS + 1
        tasks = [keyed(f"k{n}") if n in (3, 1500) else plain(n) for n in range(number)]
        ids = insert(connect(), tasks)
        stored = dict(server.sql("SELECT id, (payload ->> 'n')::integer FROM scheduled_tasks", dsn=dsn))
        assert [stored[task_id] for task_id in ids] == [0 if n in (3, 1500) else n for n in range(number)]
        assert len(set(ids)) == number

    def test_the_callers_row_factory_is_his(self, connect: Connect) -> None:
        connection = connect()
        connection.row_factory = dict_row  # type: ignore[assignment]
        (first, second) = insert(connection, [plain(), keyed()])
        assert first < second

    @pytest.mark.parametrize("autocommit", [True, False])
    def test_in_a_pipeline_each_task_is_inserted_once(
        self, server: Server, dsn: str, connect: Connect, autocommit: bool
    ) -> None:
        connection = connect(autocommit=autocommit)
        with connection.pipeline():
            ids = insert(connection, [plain(), keyed("k"), plain()])
            assert insert(connection, [keyed("k")]) == ids[1:2]
            ids += insert(connection, [plain()])
        connection.commit()
        assert server.sql("SELECT id FROM scheduled_tasks ORDER BY id", dsn=dsn) == [(each,) for each in sorted(ids)]

    def test_async(self, server: Server, dsn: str) -> None:
        async def body() -> list[int]:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                ids = await insert_async(connection, [plain(n) for n in range(BATCH_ROWS + 1)])
                assert await insert_async(connection, []) == []
                assert await insert_async(connection, [keyed()]) == await insert_async(connection, [keyed()])
                return ids

        ids = asyncio.run(body())
        stored = dict(server.sql("SELECT id, (payload ->> 'n')::integer FROM scheduled_tasks", dsn=dsn))
        assert [stored[task_id] for task_id in ids] == list(range(BATCH_ROWS + 1))
        assert len(stored) == BATCH_ROWS + 2


class TestTransactions:
    def test_it_is_the_callers(self, server: Server, dsn: str, connect: Connect) -> None:
        connection = connect(autocommit=False)
        insert(connection, [plain(), keyed()])
        assert count(server, dsn) == 0
        connection.rollback()
        insert(connection, [plain(n) for n in range(BATCH_ROWS + 1)])
        assert count(server, dsn) == 0
        connection.commit()
        assert count(server, dsn) == BATCH_ROWS + 1

    def test_many_are_all_or_none(self, server: Server, dsn: str, connect: Connect) -> None:
        bad = NewTask("add", "{}", queue="q" * 65)
        with pytest.raises(UsageError):
            insert(connect(), [*(plain(n) for n in range(BATCH_ROWS)), bad])
        assert count(server, dsn) == 0

    def test_one_statement_for_many(self, connect: Connect, server: Server, dsn: str) -> None:
        connect().execute(
            "CREATE TABLE statements (); CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO statements DEFAULT VALUES; RETURN NULL; END $$;"
            "CREATE TRIGGER seen AFTER INSERT ON scheduled_tasks EXECUTE FUNCTION seen()"
        )
        insert(connect(), [plain(n) for n in range(BATCH_ROWS)])
        assert server.value("SELECT count(*) FROM statements", dsn=dsn) == 1


class TestKeys:
    @pytest.mark.parametrize("status", ["queued", "processing"])
    def test_a_live_row_has_it(self, server: Server, dsn: str, connect: Connect, status: str) -> None:
        (first,) = insert(connect(), [keyed()])
        server.sql("UPDATE scheduled_tasks SET status = %s", status, dsn=dsn)
        assert insert(connect(), [keyed(), keyed()]) == [first, first]
        assert count(server, dsn) == 1

    @pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
    def test_an_ended_row_has_given_it_up(self, server: Server, dsn: str, connect: Connect, status: str) -> None:
        (first,) = insert(connect(), [keyed()])
        server.sql("UPDATE scheduled_tasks SET status = %s", status, dsn=dsn)
        assert insert(connect(), [keyed()]) != [first]
        assert count(server, dsn) == 2

    def test_f52_the_sequence_moves_only_for_a_row(self, server: Server, dsn: str, connect: Connect) -> None:
        connection = connect()
        insert(connection, [keyed()])
        before = sequence(server, dsn)
        for _ in range(100):
            insert(connection, [keyed()])
        assert sequence(server, dsn) == before

    @pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
    def test_f72_twenty_sessions_make_one_row(self, server: Server, dsn: str, connect: Connect, level: str) -> None:
        keys = 10
        sessions = [connect() for _ in range(20)]
        barrier = threading.Barrier(len(sessions))
        answers: list[list[int]] = []

        def enqueue(session: psycopg.Connection) -> None:
            session.execute(f"SET default_transaction_isolation = '{level}'")
            barrier.wait(30)
            answers.append([insert(session, [keyed(f"k{n}")])[0] for n in range(keys)])

        _in_threads(enqueue, sessions)
        assert len(answers) == len(sessions)
        assert {tuple(answer) for answer in answers} == {tuple(answers[0])}
        assert count(server, dsn) == keys

    def test_a_statement_takes_so_many_tasks_and_so_much_payload(self) -> None:
        many = _batches([NewTask("a", "{}")] * (2 * BATCH_ROWS + 1))
        assert [len(batch.turns) for batch in many] == [BATCH_ROWS, BATCH_ROWS, 1]
        large = _batches([NewTask("a", "x" * (BATCH_CHARACTERS // 2))] * 3)
        assert [len(batch.turns) for batch in large] == [2, 1]

    def test_keys_are_taken_in_one_order_whatever_the_callers(self) -> None:
        """In a transaction of the caller's nobody could try a deadlock again."""
        batches = _batches([NewTask("a", "{}", unique_key=key) for key in "cab"])
        assert [batch.parameters[-1] for batch in batches] == ["a", "b", "c"]

    def test_f72_many_keys_in_opposite_orders(self, server: Server, dsn: str, connect: Connect) -> None:
        forward = [keyed(f"k{n}") for n in range(50)]
        answers: list[list[int]] = []

        def enqueue(turn: int) -> None:
            tasks = forward[:: 1 if turn % 2 else -1]
            answers.append(sorted(insert(connect(), tasks)))

        _in_threads(enqueue, range(8))
        assert len(answers) == 8
        assert all(answer == answers[0] for answer in answers)
        assert count(server, dsn) == 50

    def test_the_second_waits_for_the_first_and_gets_his_row(self, server: Server, dsn: str, connect: Connect) -> None:
        first = connect(autocommit=False)
        ids = insert(first, [keyed()])
        answers: list[list[int]] = []
        thread = threading.Thread(target=lambda: answers.append(insert(connect(), [keyed()])))
        thread.start()
        eventually(lambda: server.waits_for_lock(dsn))
        first.commit()
        thread.join(30)
        assert answers == [ids]

    def test_the_second_waits_for_the_first_and_takes_his_place(
        self, server: Server, dsn: str, connect: Connect
    ) -> None:
        first = connect(autocommit=False)
        ids = insert(first, [keyed()])
        answers: list[list[int]] = []
        thread = threading.Thread(target=lambda: answers.append(insert(connect(), [keyed()])))
        thread.start()
        eventually(lambda: server.waits_for_lock(dsn))
        first.rollback()
        thread.join(30)
        assert answers
        assert answers != [ids]
        assert count(server, dsn) == 1

    def test_a_collision_in_the_callers_transaction_is_his(self, connect: Connect) -> None:
        caller = connect(autocommit=False)
        caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        caller.execute("SELECT 1 FROM scheduled_tasks")
        insert(connect(), [keyed()])
        with pytest.raises(psycopg.errors.SerializationFailure):
            insert(caller, [keyed()])
        caller.rollback()


class TestRefusals:
    def test_a_naive_time(self, server: Server, dsn: str, connect: Connect) -> None:
        with pytest.raises(UsageError, match=r"run_at 2030-01-01T00:00:00: has no time zone"):
            insert(connect(), [plain(), plain(run_at=datetime(2030, 1, 1))])
        assert count(server, dsn) == 0

    @pytest.mark.parametrize(
        "task",
        [
            NewTask("x" * 65, "{}"),
            NewTask("x", "{}", queue=""),
            NewTask("x", "{}", priority=40000),
            NewTask("x", "{}", max_retries=-1),
            NewTask("x", "{}", timeout=0.0),
            NewTask("x", '{"a": "\\u0000"}'),
            NewTask("x", "{"),
            NewTask("x", "{}", unique_key=""),
            NewTask("x\0", "{}"),
        ],
        ids=lambda task: repr(task)[:60],
    )
    def test_what_postgresql_refuses_is_one_line(
        self, server: Server, dsn: str, connect: Connect, task: NewTask
    ) -> None:
        with pytest.raises(UsageError, match=re.compile(r"^cannot enqueue: [^\n]+\Z")):
            insert(connect(), [task])
        assert count(server, dsn) == 0

    def test_no_tables(self, empty_dsn: str) -> None:
        with psycopg.connect(empty_dsn, autocommit=True) as connection, pytest.raises(SchemaError, match="migrate"):
            insert(connection, [plain()])

    def test_a_standby_or_read_only_server(self, connect: Connect) -> None:
        connection = connect()
        connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseError, match="read-only"):
            insert(connection, [plain()])

    def test_no_rights(self, server: Server, dsn: str, connect: Connect) -> None:
        connection = connect()
        connection.execute("SET ROLE pg_read_all_data")
        with pytest.raises(DatabaseError, match="pgsched check"):
            insert(connection, [plain()])

    def test_whoever_may_insert_and_use_the_sequence_may_enqueue(
        self, server: Server, dsn: str, connect: Connect
    ) -> None:
        connection = connect()
        server.sql("GRANT INSERT, SELECT ON scheduled_tasks TO pg_monitor", dsn=dsn)
        server.sql("GRANT USAGE ON SEQUENCE scheduled_tasks_id_seq TO pg_monitor", dsn=dsn)
        connection.execute("SET ROLE pg_monitor")
        insert(connection, [plain(), keyed()])
        assert count(server, dsn) == 2

    def test_a_character_that_the_connection_cannot_send(self, connect: Connect) -> None:
        connection = connect()
        connection.execute("SET client_encoding = latin1")
        with pytest.raises(UsageError, match=r"'\\u20ac' has no form in the connection's encoding"):
            insert(connection, [NewTask("x", '{"a": "€"}')])


def _in_threads(body: Callable[[Any], None], arguments: Any) -> None:
    threads = [threading.Thread(target=body, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
