"""An App's enqueue against the real server: its own connection, the caller's transaction, and what may break."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from pgsched import App, DatabaseError, DeadlineError, Task, producer
from tests.proxy import Proxy
from tests.support import Server, eventually

Add = Task[..., int]


def add(a: int, b: int = 0) -> int:
    return a + b


def declare(app: App) -> Add:
    return app.task(queue="q", priority=2, retry=5)(add)


@pytest.fixture
def app(dsn: str) -> Iterator[App]:
    app = App(dsn)
    yield app
    app.close()


@pytest.fixture
def task(app: App) -> Add:
    return declare(app)


def rows(server: Server, dsn: str) -> int:
    found: int = server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn)
    return found


def test_a_row_has_what_the_task_type_says(server: Server, dsn: str, task: Add) -> None:
    task_id = task.enqueue(3, b=4)
    row = server.sql(
        "SELECT id, task_type, payload, queue, priority, max_retries, timeout, run_at <= now(), status "
        "FROM scheduled_tasks",
        dsn=dsn,
    )
    assert row == [(task_id, "add", {"a": 3, "b": 4}, "q", 2, 5, None, True, "queued")]


def test_a_row_has_what_the_options_say(server: Server, dsn: str, task: Add) -> None:
    at = datetime.now(UTC) + timedelta(days=3)
    task.options(run_at=at, queue="other", priority=-9, timeout="1m", max_retries=0, unique_key="k").enqueue(1)
    row = server.sql("SELECT run_at, queue, priority, timeout, max_retries, unique_key FROM scheduled_tasks", dsn=dsn)
    assert row == [(at, "other", -9, 60.0, 0, "k")]


def test_a_delay_counts_by_the_databases_clock(server: Server, dsn: str, task: Add) -> None:
    task.options(delay="1h").enqueue(1)
    late = "SELECT run_at - created_at BETWEEN interval '1 hour' AND interval '1 hour 1 minute' FROM scheduled_tasks"
    assert server.value(late, dsn=dsn)


def test_the_same_key_is_the_same_task(server: Server, dsn: str, task: Add) -> None:
    keyed = task.options(unique_key="k")
    assert keyed.enqueue(1) == keyed.enqueue(2)
    assert rows(server, dsn) == 1


def test_many_in_order(server: Server, dsn: str, task: Add) -> None:
    ids = task.enqueue_many({"a": n} for n in range(1000))
    found = server.sql("SELECT id FROM scheduled_tasks ORDER BY (payload ->> 'a')::integer", dsn=dsn)
    assert [task_id for (task_id,) in found] == ids


def test_the_callers_transaction_decides(
    server: Server, dsn: str, task: Add, connect: Callable[..., psycopg.Connection]
) -> None:
    connection = connect(autocommit=False)
    task.options(connection=connection).enqueue(1)
    connection.rollback()
    assert rows(server, dsn) == 0
    task.options(connection=connection).enqueue(1)
    assert rows(server, dsn) == 0
    connection.commit()
    assert rows(server, dsn) == 1


def test_async_forms(server: Server, dsn: str, task: Add) -> None:
    async def body() -> None:
        await task.enqueue_async(1)
        await task.enqueue_many_async([{"a": 2}, {"a": 3}])
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await task.options(connection=connection).enqueue_async(4)
            await task.options(connection=connection).enqueue_many_async([{"a": 5}])
            await connection.rollback()

    asyncio.run(body())
    assert rows(server, dsn) == 3


def test_threads_share_one_connection(server: Server, dsn: str, task: Add) -> None:
    threads = [threading.Thread(target=lambda: [task.enqueue(n) for n in range(20)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(server, dsn) == 160
    assert len(server.backends(dsn)) == 1


def test_f20_a_forked_process_opens_its_own_and_leaves_the_parents_alone(server: Server, dsn: str, task: Add) -> None:
    task.enqueue(1)
    before = [backend.pid for backend in server.backends(dsn)]
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            task.enqueue(2)
            os.read(reader, 1)
            task.app.close()
        finally:
            os._exit(0)
    try:
        eventually(lambda: len(server.backends(dsn)) == 2)
    finally:
        os.write(writer, b".")
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
    eventually(lambda: len(server.backends(dsn)) == 1)
    task.enqueue(3)
    assert [backend.pid for backend in server.backends(dsn)] == before
    assert rows(server, dsn) == 3


def test_f37_a_connection_that_the_server_closed_meanwhile_is_replaced_unnoticed(
    server: Server, dsn: str, task: Add
) -> None:
    task.enqueue(1)
    server.terminate(dsn)
    eventually(lambda: not server.backends(dsn))
    task.enqueue(2)
    assert rows(server, dsn) == 2


def test_an_insert_whose_reply_is_lost_is_not_repeated(server: Server, dsn: str, proxy: Proxy) -> None:
    task = declare(App(proxy.dsn))
    task.enqueue(1)
    proxy.swallow()
    with pytest.raises(DatabaseError):
        task.enqueue(2)
    proxy.pass_on()
    assert rows(server, dsn) == 2
    task.enqueue(3)
    assert rows(server, dsn) == 3
    task.app.close()


def test_a_silent_server_is_waited_for_no_longer_than_the_deadline(
    server: Server, dsn: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = declare(App(proxy.dsn))
    task.enqueue(1)
    proxy.silence()
    with monkeypatch.context() as patched:
        patched.setattr(producer, "TIMEOUT", 0.3)
        with pytest.raises(DeadlineError, match="no answer from the database within"):
            task.enqueue(2)
    proxy.pass_on()
    task.enqueue(3)
    assert server.value("SELECT count(*) FROM scheduled_tasks WHERE payload @> '{\"a\": 3}'", dsn=dsn) == 1
    task.app.close()


def test_a_database_that_is_away_is_one_line_and_no_password(proxy: Proxy) -> None:
    task = declare(App("postgresql://somebody:s3cr3t@127.0.0.1:1/nowhere"))
    with pytest.raises(DatabaseError) as caught:
        task.enqueue(1)
    assert "s3cr3t" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_app_closed_can_be_used_again(server: Server, dsn: str, task: Add) -> None:
    task.enqueue(1)
    task.app.close()
    eventually(lambda: not server.backends(dsn))
    task.enqueue(2)
    assert rows(server, dsn) == 2
