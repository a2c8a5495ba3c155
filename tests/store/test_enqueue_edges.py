"""Enqueueing at the edges: encodings, the ends of time and size, ids by hand, a key that never rests."""

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError, UsageError
from pgsched.model import NewTask
from pgsched.store import schema
from pgsched.store.enqueue import BATCH_CHARACTERS, insert
from tests.support import Server

Connect = Callable[..., psycopg.Connection]
BARE = NewTask("a", "{}")


def row(server: Server, dsn: str, task_id: int, columns: str) -> tuple[Any, ...]:
    return server.sql(f"SELECT {columns} FROM scheduled_tasks WHERE id = %s", task_id, dsn=dsn)[0]


def test_what_was_not_said_is_the_columns_default(server: Server, dsn: str, connect: Connect) -> None:
    plain = "INSERT INTO scheduled_tasks (task_type, payload, run_at) VALUES ('a', '{}', now()) RETURNING id"
    columns = (
        "task_type, payload, queue, priority, max_retries, timeout, unique_key, status, retry_count, fence,"
        " claimed_by, error_log, result, started_at, finished_at"
    )
    theirs = row(server, dsn, server.value(plain, dsn=dsn), columns)
    for copies in (1, 2):
        assert row(server, dsn, insert(connect(), [BARE] * copies)[0], columns) == theirs


@pytest.mark.parametrize(
    "at", [datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), datetime(9999, 12, 31, 23, tzinfo=UTC)]
)
def test_ends_of_time(server: Server, dsn: str, connect: Connect, at: datetime) -> None:
    for tasks in ([BARE._replace(run_at=at)], [BARE._replace(run_at=at)] * 2):
        task_id = insert(connect(), tasks)[0]
        seconds = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        assert row(server, dsn, task_id, "extract(epoch FROM run_at)") == (seconds,)


@pytest.mark.parametrize("copies", [1, 2])
def test_every_character_arrives(server: Server, dsn: str, connect: Connect, copies: int) -> None:
    odd = "\x01 \" \\ \\\\ { } , NULL ' \x7f é \u2028 \U0001f600"
    payload = {odd: [odd, "\\u0000"]}
    task = NewTask(odd, json.dumps(payload, ensure_ascii=False), queue=odd)
    for task_id in insert(connect(), [task] * copies):
        assert row(server, dsn, task_id, "task_type, queue, payload") == (odd, odd, payload)


def test_longest_key_of_the_widest_characters_fits_the_index(connect: Connect, dice: random.Random) -> None:
    # Random, so that the index cannot compress it.
    key = "".join(chr(dice.randrange(0x10000, 0x10FFFF)) for _ in range(512))
    assert insert(connect(), [BARE._replace(unique_key=key)])
    with pytest.raises(UsageError, match="unique_key_check"):
        insert(connect(), [BARE._replace(unique_key=key + "x")])


def test_large_payloads_are_spread_over_statements(server: Server, dsn: str, connect: Connect) -> None:
    large = json.dumps({"text": "x" * (BATCH_CHARACTERS // 3)})
    ids = insert(connect(), [BARE._replace(payload=large)] * 4)
    assert len(set(ids)) == 4
    assert server.value("SELECT min(length(payload->>'text')) FROM scheduled_tasks", dsn=dsn) == BATCH_CHARACTERS // 3


def test_id_that_was_inserted_by_hand_is_stepped_over(server: Server, dsn: str, connect: Connect) -> None:
    following = server.value("SELECT nextval('scheduled_tasks_id_seq')", dsn=dsn) + 1
    server.sql("INSERT INTO scheduled_tasks (id, task_type, run_at) VALUES (%s, 'a', now())", following, dsn=dsn)
    assert insert(connect(), [BARE._replace(unique_key="k")]) == [following + 1]


def test_ids_beyond_32_bits(server: Server, dsn: str, connect: Connect) -> None:
    """F52"""
    server.sql("SELECT setval('scheduled_tasks_id_seq', 3000000000)", dsn=dsn)
    keyed = BARE._replace(unique_key="k")
    assert insert(connect(), [BARE, keyed, keyed, BARE]) == [3_000_000_001, 3_000_000_003, 3_000_000_003, 3_000_000_002]


def test_key_that_changes_hands_all_the_time(server: Server, dsn: str, connect: Connect) -> None:
    """The other task ends between our look and our insert, again and again: the answer has the key all the same."""
    keyed = BARE._replace(unique_key="k")
    done = threading.Event()

    def churn() -> None:
        connection = connect()
        while not done.is_set():
            ids = insert(connection, [keyed])
            connection.execute("UPDATE scheduled_tasks SET status = 'completed' WHERE id = ANY (%s)", [ids])

    with ThreadPoolExecutor() as threads:
        churning = threads.submit(churn)
        try:
            connection = connect()
            ids = {insert(connection, [keyed])[0] for _ in range(300)}
        finally:
            done.set()
        churning.result(10)
    assert len(ids) > 1
    known = server.sql("SELECT id FROM scheduled_tasks WHERE unique_key = 'k'", dsn=dsn)
    assert ids <= {task_id for (task_id,) in known}


def test_lost_connection_is_one_line(server: Server, dsn: str, connect: Connect) -> None:
    connection = connect(application_name="victim")
    server.terminate(dsn, "victim")
    with pytest.raises(DatabaseError, match=r"^cannot enqueue: [^\n]+\Z"):
        insert(connection, [BARE])


def test_sql_ascii_database(server: Server) -> None:
    """F56"""
    name = "pgsched_test_sql_ascii"
    server.sql(f"DROP DATABASE IF EXISTS {name}")
    server.sql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    try:
        dsn = server.dsn_for(name)
        schema.migrate(dsn)
        task = NewTask("é", json.dumps({"é": "\U0001f600\x01"}, ensure_ascii=False), unique_key="ü")
        with psycopg.connect(dsn, client_encoding="utf8", autocommit=True) as conn:
            insert(conn, [task, task])
            found = conn.execute("SELECT task_type, payload, unique_key FROM scheduled_tasks").fetchall()
        assert found == [("é", {"é": "\U0001f600\x01"}, "ü")]
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")
