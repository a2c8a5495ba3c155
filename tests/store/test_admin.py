"""What an operator does: retry, cancel and prune, alone and against somebody who works on the same tasks."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.store import admin
from pgsched.store.admin import Filter
from pgsched.store.sql import load
from tests.support import Server, eventually

Connect = Callable[..., psycopg.Connection]
ENDED = ("completed", "failed", "cancelled", "paused")


class Tasks:
    """Makes and reads rows behind the back of what is tested."""

    def __init__(self, server: Server, dsn: str) -> None:
        self.server = server
        self.dsn = dsn

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.server.sql(query, *parameters, dsn=self.dsn)

    def make(self, status: str, count: int = 1, **columns: object) -> list[int]:
        columns = {"task_type": "a", "status": status, **columns}
        names = ", ".join(columns)
        marks = ", ".join(["%s"] * len(columns))
        made = self.sql(
            f"INSERT INTO scheduled_tasks (run_at, {names}) SELECT '2020-01-01Z', {marks}"
            f" FROM generate_series(1, {count}) RETURNING id",
            *columns.values(),
        )
        return [task_id for (task_id,) in made]

    def one(self, task_id: int, columns: str = "status") -> Any:
        (found,) = self.sql(f"SELECT {columns} FROM scheduled_tasks WHERE id = %s", task_id)
        return found if "," in columns else found[0]

    def count(self, status: str) -> int:
        found: int = self.sql("SELECT count(*) FROM scheduled_tasks WHERE status = %s", status)[0][0]
        return found


@pytest.fixture
def tasks(server: Server, dsn: str) -> Tasks:
    return Tasks(server, dsn)


@pytest.fixture
def hints(connect: Connect) -> Callable[[], list[str]]:
    """What was heard on the channel so far."""
    listener = connect()
    listener.execute("LISTEN pgsched")

    def heard() -> list[str]:
        connect().execute("NOTIFY pgsched, 'marker'")
        found = []
        for hint in listener.notifies(timeout=30):
            if hint.payload == "marker":
                break
            found.append(hint.payload)
        return found

    return heard


class TestRetry:
    @pytest.mark.parametrize("status", ["failed", "cancelled"])
    def test_task_is_as_new_but_remembers_its_error(self, tasks: Tasks, connect: Connect, status: str) -> None:
        (task_id,) = tasks.make(status, retry_count=4, fence=7, error_log="boom", claimed_by=3, result="1",
                                started_at="2020-01-02Z", finished_at="2020-01-03Z", priority=5)  # fmt: skip
        changed = admin.retry(connect(), Filter(ids=[task_id]))
        assert changed == admin.Changed(ids=[task_id], left={})
        columns = "status, retry_count, fence, error_log, claimed_by, result, started_at, finished_at, priority"
        assert tasks.one(task_id, columns) == ("queued", 0, 8, "boom", None, None, None, None, 5)
        assert tasks.one(task_id, "run_at = updated_at AND now() - run_at < '1 minute'")
        assert tasks.sql("SELECT id FROM scheduled_tasks_live") == [(task_id,)]

    def test_only_what_failed_or_was_cancelled(self, tasks: Tasks, connect: Connect) -> None:
        failed, cancelled, completed, paused, queued, processing = (
            tasks.make(status)[0] for status in ("failed", "cancelled", "completed", "paused", "queued", "processing")
        )
        assert admin.retry(connect(), Filter()).ids == [failed, cancelled]
        missing = processing + 1000
        changed = admin.retry(connect(), Filter(ids=[completed, paused, queued, processing, missing]))
        assert changed.ids == []
        assert changed.left == {
            completed: "is completed",
            paused: "is paused",
            queued: "is queued",
            processing: "is processing",
            missing: "not found",
        }
        assert tasks.one(processing, "fence") == 0

    def test_filter(self, tasks: Tasks, connect: Connect) -> None:
        (wanted,) = tasks.make("failed", task_type="b", queue="q")
        (
            tasks.make("failed", task_type="b"),
            tasks.make("failed", queue="q"),
            tasks.make("cancelled", task_type="b", queue="q"),
        )
        chosen = Filter(statuses=["failed", "completed"], task_types=["b", "c"], queues=["q"])
        assert admin.retry(connect(), chosen).ids == [wanted]
        assert admin.retry(connect(), Filter(statuses=["completed"])).ids == []
        assert admin.retry(connect(), Filter(ids=[])).ids == []

    def test_many_batches(self, tasks: Tasks, connect: Connect) -> None:
        ids = tasks.make("failed", 2 * admin.BATCH + 1)
        assert admin.retry(connect(), Filter()).ids == ids
        assert tasks.count("queued") == len(ids)

    def test_sleepers_are_woken_only_if_something_is_queued(
        self, tasks: Tasks, connect: Connect, hints: Callable[[], list[str]]
    ) -> None:
        admin.retry(connect(), Filter())
        assert hints() == []
        tasks.make("failed", 3)
        admin.retry(connect(), Filter())
        assert hints() == [""]

    def test_taken_key_is_left(self, tasks: Tasks, connect: Connect) -> None:
        old, older_twin, free = (tasks.make("failed", unique_key=key)[0] for key in ("k", "l", "m"))
        (twin,) = tasks.make("failed", unique_key="l")
        tasks.make("queued", unique_key="k")
        changed = admin.retry(connect(), Filter())
        why = "another live task has its unique key"
        assert changed == admin.Changed(ids=[older_twin, free], left={old: why, twin: why})

    def test_an_id_that_two_tasks_have_stops_no_other(self, tasks: Tasks, connect: Connect) -> None:
        first, queued_too, failed_too, completed_too, last = tasks.make("failed", 5)
        tasks.make("queued", id=queued_too)
        tasks.make("failed", id=failed_too)
        tasks.make("completed", id=completed_too)
        changed = admin.retry(connect(), Filter())
        twice = (queued_too, failed_too, completed_too)
        assert changed == admin.Changed(ids=[first, last], left=dict.fromkeys(twice, "another task has its id"))
        assert tasks.count("queued") == 3

    def test_an_id_that_two_tasks_have_takes_no_key_from_another(self, tasks: Tasks, connect: Connect) -> None:
        twice, other = tasks.make("failed", 1, unique_key="k") + tasks.make("failed", 1, unique_key="k")
        tasks.make("completed", id=twice)
        assert admin.retry(connect(), Filter()).ids == [other]

    def test_key_that_is_taken_in_the_same_moment(self, tasks: Tasks, connect: Connect) -> None:
        (old,) = tasks.make("failed", unique_key="k")
        other = connect(autocommit=False)
        other.execute("INSERT INTO scheduled_tasks (task_type, run_at, unique_key) VALUES ('a', now(), 'k')")
        with ThreadPoolExecutor() as threads:
            retrying = threads.submit(admin.retry, connect(), Filter(ids=[old]))
            eventually(lambda: tasks.server.waits_for_lock(tasks.dsn))
            other.commit()
            assert retrying.result(10).left == {old: "another live task has its unique key"}

    def test_two_operators_retry_once(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("failed", 300, fence=1)
        with ThreadPoolExecutor() as threads:
            done = [threads.submit(admin.retry, connect(), Filter()) for _ in range(4)]
            ids = [task_id for future in done for task_id in future.result(20).ids]
        assert len(ids) == len(set(ids)) == 300
        assert tasks.sql("SELECT DISTINCT fence FROM scheduled_tasks") == [(2,)]


class TestCancel:
    @pytest.mark.parametrize("status", ["queued", "processing"])
    def test_fence_rises_and_the_claim_is_gone(self, tasks: Tasks, connect: Connect, status: str) -> None:
        (task_id,) = tasks.make(status, fence=7, claimed_by=3, retry_count=1, error_log="boom", unique_key="k")
        assert admin.cancel(connect(), Filter(ids=[task_id])) == admin.Changed(ids=[task_id], left={})
        assert tasks.one(task_id, "status, fence, claimed_by, retry_count, error_log, unique_key") == (
            "cancelled", 8, None, 1, "boom", "k",
        )  # fmt: skip
        assert tasks.one(task_id, "finished_at = updated_at AND now() - finished_at < '1 minute'")
        assert tasks.sql("SELECT id FROM scheduled_tasks_ended") == [(task_id,)]

    def test_what_has_ended_stays(self, tasks: Tasks, connect: Connect) -> None:
        ids = {tasks.make(status)[0]: f"is {status}" for status in ENDED}
        assert admin.cancel(connect(), Filter(ids=list(ids))) == admin.Changed(ids=[], left=ids)
        assert admin.cancel(connect(), Filter()).ids == []

    def test_filter_and_batches(self, tasks: Tasks, connect: Connect) -> None:
        wanted = tasks.make("queued", admin.BATCH + 1, queue="q")
        tasks.make("processing", queue="q"), tasks.make("queued")
        assert admin.cancel(connect(), Filter(statuses=["queued"], queues=["q"])).ids == wanted
        assert tasks.count("processing") == tasks.count("queued") == 1

    def test_supervisors_are_told_with_the_commit(
        self, tasks: Tasks, connect: Connect, hints: Callable[[], list[str]]
    ) -> None:
        tasks.make("processing", 3)
        admin.cancel(connect(), Filter())
        assert hints() == ["cancel"]
        admin.cancel(connect(), Filter())
        assert hints() == []

    def test_f74_settle_that_was_first_stands(self, tasks: Tasks, connect: Connect) -> None:
        (task_id,) = tasks.make("processing")
        settler = connect(autocommit=False)
        settler.execute("UPDATE scheduled_tasks SET status = 'completed' WHERE id = %s", [task_id])
        with ThreadPoolExecutor() as threads:
            cancelling = threads.submit(admin.cancel, connect(), Filter(ids=[task_id]))
            eventually(lambda: tasks.server.waits_for_lock(tasks.dsn))
            settler.commit()
            assert cancelling.result(10) == admin.Changed(ids=[], left={task_id: "is completed"})

    def test_f74_claim_that_was_first_is_cancelled(self, tasks: Tasks, connect: Connect) -> None:
        (task_id,) = tasks.make("queued")
        claimer = connect(autocommit=False)
        claim = "UPDATE scheduled_tasks SET status = 'processing', claimed_by = 3, fence = fence + 1 WHERE id = %s"
        claimer.execute(claim, [task_id])
        with ThreadPoolExecutor() as threads:
            cancelling = threads.submit(admin.cancel, connect(), Filter(ids=[task_id]))
            eventually(lambda: tasks.server.waits_for_lock(tasks.dsn))
            claimer.commit()
            assert cancelling.result(10).ids == [task_id]
        assert tasks.one(task_id, "status, fence, claimed_by") == ("cancelled", 2, None)

    def test_ended_task_of_the_same_id_is_left_alone(self, tasks: Tasks, connect: Connect) -> None:
        (task_id,) = tasks.make("queued")
        tasks.make("completed", id=task_id)
        assert admin.cancel(connect(), Filter(ids=[task_id])).ids == [task_id]
        assert tasks.sql("SELECT status, fence FROM scheduled_tasks ORDER BY 1") == [("cancelled", 1), ("completed", 0)]

    def test_f54_opposite_order_is_no_failure(self, tasks: Tasks, connect: Connect) -> None:
        first, second = tasks.make("queued", 2)
        other = connect(autocommit=False)
        touch = "UPDATE scheduled_tasks SET updated_at = now() WHERE id = %s"
        other.execute(touch, [second])
        with ThreadPoolExecutor() as threads:
            cancelling = threads.submit(admin.cancel, connect(), Filter())
            eventually(lambda: tasks.server.waits_for_lock(tasks.dsn))
            # Closes the circle; the server ends one of the two transactions.
            try:
                other.execute(touch, [first])
                other.commit()
            except psycopg.errors.DeadlockDetected:
                other.rollback()
            assert cancelling.result(10).ids == [first, second]

    def test_random_cancels_against_settles(self, tasks: Tasks, connect: Connect, dice: random.Random) -> None:
        """F74: each task ends once, and both sides know which."""
        ids = tasks.make("processing", 100)
        orders = [dice.sample(ids, len(ids)) for _ in range(2)]
        settle = "UPDATE scheduled_tasks SET status = 'completed' WHERE id = %s AND fence = 0 AND status = 'processing'"

        def settler(connection: psycopg.Connection) -> set[int]:
            settled = set()
            for task_id in orders[0]:
                try:
                    if connection.execute(settle, [task_id]).rowcount:
                        settled.add(task_id)
                except psycopg.errors.SerializationFailure:
                    # The cancel has moved it; ours would be tried again and find nothing.
                    continue
            return settled

        with ThreadPoolExecutor() as threads:
            settling = threads.submit(settler, connect())
            connection = connect()
            cancelled = {
                task_id for order in orders[1] for task_id in admin.cancel(connection, Filter(ids=[order])).ids
            }
            settled = settling.result(20)
        assert settled.isdisjoint(cancelled)
        assert settled | cancelled == set(ids)
        assert tasks.count("cancelled") == len(cancelled)


class TestPrune:
    OLD = "2020-01-01Z"

    def test_what_ended_long_ago_goes_with_its_failures(self, tasks: Tasks, connect: Connect) -> None:
        old = [tasks.make(status, finished_at=self.OLD)[0] for status in ("completed", "failed", "cancelled")]
        young = [tasks.make(status, finished_at="now")[0] for status in ("completed", "failed", "cancelled")]
        live = tasks.make("queued") + tasks.make("processing", updated_at=self.OLD)
        for task_id in (*old, *young, *live):
            tasks.sql(
                "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, seconds)"
                " VALUES (%s, 1, 1, 'a', 'raised', 'boom', 1)",
                task_id,
            )
        assert admin.prune(connect(), 7 * 86400.0) == len(old)
        assert {task_id for (task_id,) in tasks.sql("SELECT id FROM scheduled_tasks")} == {*young, *live}
        assert {task_id for (task_id,) in tasks.sql("SELECT task_id FROM pgsched_failures")} == {*young, *live}

    def test_rows_that_the_articles_statements_ended(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", updated_at=self.OLD)
        (young,) = tasks.make("completed", updated_at="now")
        assert admin.prune(connect(), 3600.0) == 1
        assert tasks.sql("SELECT id FROM scheduled_tasks") == [(young,)]

    def test_status_that_is_nobodys_stays(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("paused", updated_at=self.OLD, finished_at=self.OLD)
        assert admin.prune(connect(), 0.0) == 0

    @pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 25])
    def test_batches(self, tasks: Tasks, connect: Connect, count: int) -> None:
        if count:
            tasks.make("completed", count, finished_at=self.OLD)
        assert admin.prune(connect(), 60.0, batch=10) == count
        assert tasks.count("completed") == 0

    def test_locked_task_is_not_waited_for(self, tasks: Tasks, connect: Connect) -> None:
        locked, other = tasks.make("completed", 2, finished_at=self.OLD)
        holder = connect(autocommit=False)
        holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", [locked])
        assert admin.prune(connect(), 60.0) == 1
        holder.rollback()
        assert tasks.sql("SELECT id FROM scheduled_tasks") == [(locked,)]
        assert other != locked

    def test_several_at_once_delete_each_task_once(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", 500, finished_at=self.OLD)
        with ThreadPoolExecutor() as threads:
            pruning = [threads.submit(admin.prune, connect(), 60.0, 50) for _ in range(4)]
            assert sum(future.result(20) for future in pruning) == 500

    def test_the_sessions_date_style_leaves_no_task_behind(self, tasks: Tasks, connect: Connect) -> None:
        """Its times have a zone that PostgreSQL up to 17 reads back as another one's."""
        for minute in range(6):
            tasks.make("failed", finished_at=f"2020-01-01 00:0{minute}Z")
        connection = connect()
        connection.execute("SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'")
        assert admin.prune(connection, 60.0, batch=2) == 6

    def test_retry_and_prune_of_the_same_tasks(self, tasks: Tasks, connect: Connect) -> None:
        ids = tasks.make("failed", 500, finished_at=self.OLD)
        with ThreadPoolExecutor() as threads:
            retrying = threads.submit(admin.retry, connect(), Filter())
            pruned = admin.prune(connect(), 60.0, batch=20)
            retried = retrying.result(20).ids
        assert tasks.count("queued") == len(retried)
        assert pruned + len(retried) + tasks.count("failed") == len(ids)


@pytest.mark.parametrize(("action", "status"), [(admin.retry, "failed"), (admin.cancel, "queued")])
def test_f54_tasks_are_locked_in_the_order_of_their_ids(
    tasks: Tasks, connect: Connect, action: Callable[[psycopg.Connection, Filter], admin.Changed], status: str
) -> None:
    ids = tasks.make(status, 20)
    for task_id in reversed(ids):
        # In the table they now lie the other way round.
        tasks.sql("UPDATE scheduled_tasks SET updated_at = now() WHERE id = %s", task_id)
    holder = connect(autocommit=False)
    holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", [ids[10]])
    with ThreadPoolExecutor() as threads:
        changing = threads.submit(action, connect(), Filter())
        eventually(lambda: tasks.server.waits_for_lock(tasks.dsn))
        free = tasks.sql("SELECT id FROM scheduled_tasks ORDER BY id FOR UPDATE SKIP LOCKED")
        holder.rollback()
        assert changing.result(10).ids == ids
    assert [task_id for (task_id,) in free] == ids[11:]


@pytest.mark.parametrize("name", ["retry", "cancel", "prune"])
def test_statement_needs_no_scan_of_the_ended_tasks(tasks: Tasks, connect: Connect, name: str) -> None:
    tasks.make("completed", 20_000, finished_at="now")
    tasks.make("failed", 10, finished_at=TestPrune.OLD)
    arguments = (60.0, 1000, None) if name == "prune" else (None, ["failed", "cancelled"], None, None, 0, 1000)
    assert "Seq Scan on scheduled_tasks_ended" not in plan(connect(), name, *arguments)


def plan(connection: psycopg.Connection, name: str, *arguments: object) -> str:
    connection.execute("ANALYZE scheduled_tasks")
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(b"EXPLAIN " + load(name), arguments)
        return "\n".join(line for (line,) in cursor)


@pytest.mark.parametrize("action", [admin.retry, admin.cancel, lambda conn, _: admin.prune(conn, 0.0)])
def test_refusal_is_one_line(connect: Connect, action: Callable[[psycopg.Connection, Filter], object]) -> None:
    connection = connect()
    connection.execute("SET ROLE pg_read_all_data")
    with pytest.raises(DatabaseError, match=r"^cannot (retry|cancel|prune) tasks: permission denied [^\n]+\Z"):
        action(connection, Filter())
