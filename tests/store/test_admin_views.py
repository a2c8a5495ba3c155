"""What an operator sees: counts that stay cheap, who holds what until when, lists and details."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.model import NewTask
from pgsched.store import admin
from pgsched.store.admin import Filter
from pgsched.store.capacity import read_attempts
from pgsched.store.enqueue import insert
from pgsched.store.sql import load
from tests.store.test_admin import Tasks
from tests.support import Server

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def tasks(server: Server, dsn: str) -> Tasks:
    return Tasks(server, dsn)


def supervisor(tasks: Tasks, **columns: object) -> int:
    given = {
        "host": "h",
        "boot_id": "b",
        "pid_namespace": 1,
        "pid": 2**33,
        "started_ticks": 1,
        "processes": 4,
        "lease_until": "2100-01-01Z",
        **columns,
    }
    marks = ", ".join(["%s"] * len(given))
    made = f"INSERT INTO pgsched_supervisors ({', '.join(given)}) VALUES ({marks}) RETURNING id"
    found: int = tasks.sql(made, *given.values())[0][0]
    return found


class TestStatus:
    def test_empty(self, connect: Connect) -> None:
        found = admin.status(connect())
        assert (found.counts, found.supervisors, found.ownerless, found.ended_about) == ([], [], 0, None)
        assert (found.oldest_due, found.unserved) == ({}, [])

    def test_counts_by_queue_type_and_status(self, tasks: Tasks, connect: Connect) -> None:
        for number, status in enumerate(
            ("queued", "processing", "completed", "failed", "cancelled", "paused", "other"), start=1
        ):
            tasks.make(status, number, task_type="a", queue="q")
            tasks.make(status, number + 10, task_type="b", queue="q")
        tasks.make("queued", 3, task_type="b", priority=9)
        tasks.make("queued", 4, task_type="b", priority=-9)
        found = {(count.queue, count.task_type, count.status): count for count in admin.status(connect()).counts}
        assert {key: count.tasks for key, count in found.items()} == {
            ("default", "b", "queued"): 7,
            **{
                ("q", task_type, status): number + extra
                for number, status in enumerate(
                    ("queued", "processing", "completed", "failed", "cancelled", "paused", "other"), start=1
                )
                for task_type, extra in (("a", 0), ("b", 10))
            },
        }
        assert not any(count.at_least for count in found.values())

    def test_counting_stops_and_says_so(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("queued", 30)
        tasks.make("queued", 5, task_type="b")
        for status in ("completed", "failed"):
            tasks.make(status, 6)
            tasks.make(status, 15, task_type="b")
        tasks.make("cancelled", 9)
        counts = admin.status(connect(), count_limit=20).counts
        assert [(count.task_type, count.status, count.tasks, count.at_least) for count in counts] == [
            ("a", "queued", 20, True),
            ("b", "queued", 5, False),
            ("a", "cancelled", 9, False),
            # Of the newest 20.
            ("a", "completed", 5, True),
            ("a", "failed", 5, True),
            ("b", "completed", 15, True),
            ("b", "failed", 15, True),
        ]

    def test_oldest_due_by_queue(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("queued", queue="future")
        tasks.make("queued", queue="past", task_type="b")
        tasks.make("queued", queue="past", priority=3)
        tasks.make("queued", queue="always")
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() + interval '1 hour' WHERE queue = 'future'")
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() - interval '1 hour' WHERE queue = 'past'")
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() - interval '2 hours' WHERE priority = 3")
        tasks.sql("UPDATE scheduled_tasks SET run_at = '-infinity' WHERE queue = 'always'")
        oldest = admin.status(connect()).oldest_due
        assert oldest.keys() == {"past", "always"}
        assert 7200 <= oldest["past"] < 7260
        assert oldest["always"] == 0

    def test_types_and_queues_that_nobody_serves(self, tasks: Tasks, connect: Connect) -> None:
        supervisor(tasks, task_types=["known"])
        supervisor(tasks, task_types=["here"], queues=["q"])
        supervisor(tasks, task_types=["dead"], lease_until="2020-01-01Z")
        for task_type, queue in (
            ("known", "any"),
            ("here", "q"),
            ("here", "elsewhere"),
            ("dead", "q"),
            ("Known", "any"),
        ):
            tasks.make("queued", task_type=task_type, queue=queue)
        tasks.make("processing", task_type="nobody")
        unserved = {(count.task_type, count.queue) for count in admin.status(connect()).unserved}
        assert unserved == {("here", "elsewhere"), ("dead", "q"), ("Known", "any")}

    def test_supervisors_and_what_they_hold(self, tasks: Tasks, connect: Connect) -> None:
        first = supervisor(tasks, queues=["q"], task_types=["a", "b"], version="1.2", listening=True)
        second = supervisor(tasks, host="g", lease_until="2020-01-01Z")
        tasks.make("processing", 3, claimed_by=first)
        tasks.make("queued", 2, claimed_by=first)
        tasks.make("completed", 2, claimed_by=first)
        tasks.make("processing", 2, claimed_by=second + 1000)
        tasks.make("processing", 1)
        found = admin.status(connect())
        idle, busy = found.supervisors
        assert (idle.id, idle.host, idle.claims, idle.queues) == (second, "g", 0, [])
        assert idle.lease_seconds < 0
        assert (busy.id, busy.pid, busy.processes, busy.claims) == (first, 2**33, 4, 3)
        assert (busy.queues, busy.task_types, busy.version, busy.listening) == (["q"], ["a", "b"], "1.2", True)
        assert busy.lease_until == datetime(2100, 1, 1, tzinfo=UTC)
        assert busy.lease_seconds > 0
        assert found.ownerless == 3

    def test_capacity(self, tasks: Tasks, connect: Connect) -> None:
        """In five minutes 30 tasks of 20 s became due: work for two processes. Of four, one was busy."""
        holder = supervisor(tasks, processes=4, registered_at="2020-01-01Z")
        other = supervisor(tasks, processes=1, registered_at="2020-01-01Z")
        tasks.make("completed", 10, claimed_by=holder)
        tasks.make("completed", 5, claimed_by=holder, task_type="old")
        tasks.make("queued", 20)
        tasks.make("queued", 40, task_type="future")
        tasks.make("queued", 2, task_type="unknown")
        tasks.make("queued", 5, task_type="old")
        # One of them waits for the only process.
        tasks.make("processing", 2, claimed_by=other, task_type="long")
        tasks.sql(
            "UPDATE scheduled_tasks SET started_at = now() - interval '30 s', finished_at = now() - interval '10 s'"
            " WHERE status = 'completed'"
        )
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() - interval '1 minute'")
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() + interval '1 minute' WHERE task_type = 'future'")
        tasks.sql("UPDATE scheduled_tasks SET run_at = now() - interval '1 hour' WHERE task_type IN ('old', 'long')")
        tasks.sql("UPDATE scheduled_tasks SET started_at = now() - interval '600 s' WHERE status = 'processing'")
        found = admin.status(connect())
        shown = {
            each.task_type: (each.attempts, each.became_due, each.seconds and round(each.seconds), each.needed)
            for each in found.capacity.demands
        }
        assert shown == {
            "a": (10, 30, 20, pytest.approx(2.0)),
            "old": (5, 0, 20, 0.0),
            "unknown": (0, 2, None, None),
            "long": (0, 0, 600, 0.0),
        }
        assert found.capacity.window == 300
        assert found.capacity.needed == pytest.approx(2.0)
        assert {each.id: round(found.busy(each), 2) for each in found.supervisors} == {holder: 0.25, other: 1.0}

    def test_capacity_of_failed_attempts(self, tasks: Tasks, connect: Connect) -> None:
        holder = supervisor(tasks, processes=1, registered_at="2020-01-01Z")
        for seconds, ago in ((20, 10), (40, 280), (100, 301)):
            tasks.sql(
                "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, seconds, supervisor,"
                " failed_at) VALUES (1, 1, 1, 'a', 'crashed', 'e', %s, %s, now() - make_interval(secs => %s))",
                seconds,
                holder,
                ago,
            )
        found = admin.status(connect())
        [demand] = found.capacity.demands
        assert (demand.attempts, demand.became_due, demand.seconds) == (2, 2, 30)
        assert demand.needed == pytest.approx(0.2)
        # Of the older one, 20 s were before.
        assert found.busy(found.supervisors[0]) == pytest.approx(40 / 300, abs=0.01)

    def test_capacity_of_a_supervisor_that_is_new(self, tasks: Tasks, connect: Connect) -> None:
        holder = supervisor(tasks, processes=2)
        tasks.sql("UPDATE pgsched_supervisors SET registered_at = now() - interval '100 s'")
        tasks.make("completed", 10, claimed_by=holder)
        tasks.sql("UPDATE scheduled_tasks SET started_at = now() - interval '10 s', finished_at = now()")
        found = admin.status(connect())
        assert found.busy(found.supervisors[0]) == pytest.approx(0.5, abs=0.1)

    def test_capacity_of_many_attempts_is_of_a_shorter_time(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", 100)
        tasks.sql(
            "UPDATE scheduled_tasks SET run_at = now() - interval '1 hour', started_at = now() - interval '1 hour',"
            " finished_at = now() - make_interval(secs => id - (SELECT min(id) FROM scheduled_tasks))"
        )
        window, attempts = read_attempts(connect(), 20)
        assert 19 <= window < 60
        assert sum(each.ended for each in attempts) == 20

    def test_size_of_the_ended_part(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", 50)
        tasks.sql("ANALYZE scheduled_tasks")
        assert admin.status(connect()).ended_about == 50

    def test_no_statement_scans_the_ended_tasks(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", 20_000, finished_at="2020-01-01Z")
        tasks.make("failed", 10, finished_at="2020-01-01Z")
        tasks.sql("SELECT pgsched_make_range('1 day', '1 day')")
        tasks.make("completed", 20_000, finished_at="now")
        tasks.sql("ANALYZE scheduled_tasks")
        everything = (None, None, None, None, 100)
        failed = (None, ["failed"], None, None, 100)
        for name, arguments in (
            ("status_ended", (1000,)),
            ("status_attempts", (1000, 300.0)),
            ("list_tasks", everything),
            ("list_tasks", failed),
            ("show_task", (1,)),
            ("list_results", ([1, 2],)),
            ("statuses", ([1, 2],)),
        ):
            with psycopg.RawCursor(connect()) as cursor:
                cursor.execute(b"EXPLAIN " + load(name), arguments)
                assert not [line for (line,) in cursor if "Seq Scan on scheduled_tasks_ended" in line]


class TestList:
    def test_newest_first(self, tasks: Tasks, connect: Connect) -> None:
        ids = [tasks.make(status)[0] for status in ("completed", "queued", "failed", "processing", "paused")]
        found = admin.list_tasks(connect(), Filter())
        assert [line.id for line in found] == ids[::-1]
        assert [line.id for line in admin.list_tasks(connect(), Filter(), limit=2)] == ids[:2:-1]

    @pytest.mark.parametrize(
        ("chosen", "wanted"),
        [
            ({}, "fedcba"),
            ({"statuses": ["queued"]}, "ba"),
            ({"statuses": ["queued", "failed"]}, "edba"),
            ({"task_types": ["x"]}, "eca"),
            ({"queues": ["q", "nowhere"]}, "cb"),
            ({"statuses": ["queued"], "task_types": ["x"]}, "a"),
            ({"statuses": []}, ""),
            ({"ids": []}, ""),
            ({"ids": "bd"}, "db"),
            ({"ids": "bd", "statuses": ["failed"]}, "d"),
        ],
        ids=str,
    )
    def test_filter(self, tasks: Tasks, connect: Connect, chosen: dict[str, Any], wanted: str) -> None:
        rows = [
            ("queued", "x", "p"),
            ("queued", "y", "q"),
            ("processing", "x", "q"),
            ("failed", "y", "p"),
            ("failed", "x", "p"),
            ("completed", "y", "p"),
        ]
        names = {
            tasks.make(status, task_type=task_type, queue=queue)[0]: name
            for name, (status, task_type, queue) in zip("abcdef", rows, strict=True)
        }
        if "ids" in chosen:
            chosen = {**chosen, "ids": [task_id for task_id, name in names.items() if name in chosen["ids"]]}
        assert "".join(names[line.id] for line in admin.list_tasks(connect(), Filter(**chosen))) == wanted

    def test_line(self, tasks: Tasks, connect: Connect) -> None:
        holder = supervisor(tasks)
        (task_id,) = tasks.make(
            "processing", claimed_by=holder, error_log="x" * 5000, retry_count=2, max_retries=5, priority=-3
        )
        (line,) = admin.list_tasks(connect(), Filter(ids=[task_id]))
        assert (line.id, line.task_type, line.queue, line.priority, line.status) == (
            task_id,
            "a",
            "default",
            -3,
            "processing",
        )
        assert (line.retry_count, line.max_retries, line.error) == (2, 5, "x" * 1000)
        assert (line.claimed_by, line.host, line.pid) == (holder, "h", 2**33)
        assert line.lease_until == datetime(2100, 1, 1, tzinfo=UTC)

    def test_only_work_in_hand_has_a_holder(self, tasks: Tasks, connect: Connect) -> None:
        tasks.make("completed", claimed_by=supervisor(tasks))
        (line,) = admin.list_tasks(connect(), Filter())
        assert (line.claimed_by, line.host, line.pid, line.lease_until) == (None, None, None, None)

    @pytest.mark.parametrize(
        ("stored", "shown"),
        [
            ("infinity", datetime(9999, 12, 30, tzinfo=UTC)),
            ("20000-01-01Z", datetime(9999, 12, 30, tzinfo=UTC)),
            ("9999-12-31 23:59:59Z", datetime(9999, 12, 30, tzinfo=UTC)),
            ("-infinity", datetime(1, 1, 2, tzinfo=UTC)),
            ("0001-01-01 00:00Z", datetime(1, 1, 2, tzinfo=UTC)),
            ("2024-05-06 07:08:09.5+02", datetime(2024, 5, 6, 5, 8, 9, 500000, tzinfo=UTC)),
            ("0044-03-15 BC", datetime(1, 1, 2, tzinfo=UTC)),
        ],
    )
    @pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
    def test_times_beyond_pythons_become_the_nearest(
        self, tasks: Tasks, connect: Connect, stored: str, shown: datetime, zone: str
    ) -> None:
        (task_id,) = tasks.make("queued")
        tasks.sql("UPDATE scheduled_tasks SET run_at = %s::timestamptz", stored)
        connection = connect()
        connection.execute(f"SET TimeZone = '{zone}'".encode())
        (line,) = admin.list_tasks(connection, Filter(ids=[task_id]))
        assert line.run_at == shown
        assert line.run_at.astimezone()


class TestShow:
    def test_unknown_id(self, connect: Connect) -> None:
        assert admin.show(connect(), 2**60) is None

    def test_everything(self, tasks: Tasks, connect: Connect) -> None:
        holder = supervisor(tasks)
        (task_id,) = tasks.make(
            "processing",
            claimed_by=holder,
            payload='{"n": 1}',
            result="[2]",
            unique_key="k",
            timeout=1.5,
            fence=2**40,
            error_log="two\nlines",
        )
        for attempt in (1, 2):
            tasks.sql(
                "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, traceback,"
                " exit_code, signal, out_of_memory, cpu_seconds, peak_memory, stderr, stack, seconds, supervisor)"
                " VALUES (%s, %s, 5, 'a', 'crashed', 'killed', 'tb', 1, 9, true, 0.5, %s, 'err', 'stack', 2.5, %s)",
                task_id,
                attempt,
                2**40,
                holder,
            )
        found = admin.show(connect(), task_id)
        assert found is not None
        task = found.task
        assert (task.payload, task.result, task.unique_key, task.timeout) == ('{"n": 1}', "[2]", "k", 1.5)
        assert (task.fence, task.error_log, task.claimed_by) == (2**40, "two\nlines", holder)
        assert found.holder is not None
        assert (found.holder.id, found.holder.claims) == (holder, 1)
        first, second = found.failures
        assert (first.attempt, second.attempt) == (1, 2)
        assert (first.outcome, first.signal, first.out_of_memory, first.peak_memory) == ("crashed", 9, True, 2**40)
        assert (first.traceback, first.stderr, first.stack, first.supervisor) == ("tb", "err", "stack", holder)

    def test_every_column_is_shown(self, tasks: Tasks, connect: Connect) -> None:
        (task_id,) = tasks.make("queued")
        found = admin.show(connect(), task_id)
        assert found is not None
        columns = tasks.sql(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'scheduled_tasks'::regclass AND attnum > 0"
            " ORDER BY attnum"
        )
        assert [name for (name,) in columns] == list(type(found.task).__slots__)

    def test_live_task_goes_before_an_ended_one_of_the_same_id(self, tasks: Tasks, connect: Connect) -> None:
        (task_id,) = tasks.make("completed")
        tasks.sql("INSERT INTO scheduled_tasks (id, task_type, run_at) VALUES (%s, 'live', now())", task_id)
        found = admin.show(connect(), task_id)
        assert found is not None
        assert found.task.task_type == "live"

    @pytest.mark.parametrize("owner", [None, 2**50])
    def test_worker_that_is_no_supervisor(self, tasks: Tasks, connect: Connect, owner: int | None) -> None:
        (task_id,) = tasks.make("processing", claimed_by=owner)
        found = admin.show(connect(), task_id)
        assert found is not None
        assert found.holder is None


def test_the_sessions_date_style_does_not_matter(tasks: Tasks, connect: Connect) -> None:
    at = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    connection = connect()
    task_id = insert(connection, [NewTask("a", "{}", run_at=at)])[0]
    holder = supervisor(tasks, lease_until=at)
    connection.execute("SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'")
    assert [line.run_at for line in admin.list_tasks(connection, Filter())] == [at]
    found = admin.show(connection, task_id)
    assert found is not None
    assert found.task.run_at == at
    assert [(each.id, each.lease_until) for each in admin.status(connection).supervisors] == [(holder, at)]
    assert connection.execute("SHOW DateStyle").fetchone() == ("SQL, DMY",)


def test_refusal_is_one_line(connect: Connect) -> None:
    connection = connect()
    connection.execute("SET ROLE pg_monitor")
    for look in (admin.status, lambda conn: admin.show(conn, 1), lambda conn: admin.list_tasks(conn, Filter())):
        with pytest.raises(DatabaseError, match=r"^cannot [^\n]+permission denied [^\n]+\Z"):
            look(connection)


def test_f52_every_counter_beyond_32_bits(tasks: Tasks, connect: Connect) -> None:
    for (name,) in tasks.sql("SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences"):
        tasks.sql("SELECT setval(%s::regclass, 3000000000)", name)
    connection = connect()
    first, second = insert(connection, [NewTask("a", "{}"), NewTask("a", "{}", unique_key="k")])
    holder = supervisor(tasks)
    tasks.sql("UPDATE scheduled_tasks SET status = 'processing', claimed_by = %s, fence = 3000000000", holder)
    tasks.sql(
        "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, seconds, supervisor)"
        " VALUES (%s, 1, 3000000000, 'a', 'raised', 'boom', 1, %s)",
        first,
        holder,
    )
    assert (first, second, holder) == (3_000_000_001, 3_000_000_002, 3_000_000_001)
    shown = admin.show(connection, first)
    assert shown is not None
    assert shown.holder is not None
    assert (shown.holder.id, shown.holder.claims, shown.failures[0].id) == (holder, 2, 3_000_000_001)
    assert admin.cancel(connection, Filter(ids=[first, second])).ids == [first, second]
    assert admin.retry(connection, Filter(ids=[first])).ids == [first]
    assert [(line.id, line.status) for line in admin.list_tasks(connection, Filter())] == [
        (second, "cancelled"),
        (first, "queued"),
    ]
    assert admin.prune(connection, 0.0) == 1
    assert tasks.one(first, "fence") == 3_000_000_002
