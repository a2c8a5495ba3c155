"""What a row means: workers written after the article beside ours, a table of theirs, and all that a task can say."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.article import text
from tests.audit import Audit
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"

ARTICLE_TABLE, ARTICLE_CLAIM, ARTICLE_COMPLETE, ARTICLE_FAIL, ARTICLE_REAP = (
    text(name) for name in ("snippet_1", "snippet_2", "snippet_5_complete", "snippet_5_fail", "snippet_7")
)


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


class ForeignWorker:
    """Works in a thread with the article's statements and nothing else; signs in like our tasks do."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, application_name="foreign")
        # Parameters are written as $1 in the article.
        self._cursor = psycopg.RawCursor(self._connection)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done: list[int] = []
        self.failed: list[int] = []
        self.error: BaseException | None = None
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:
            self.error = error

    def _turn(self) -> None:
        execute = self._cursor.execute
        execute(ARTICLE_REAP)
        self._connection.commit()
        found = execute(ARTICLE_CLAIM).fetchone()
        self._connection.commit()
        if found is None:
            self._stop.wait(0.01)
            return
        task_id = found[0]
        execute("INSERT INTO audit (task_id, attempt, pid, parent) VALUES ($1, $2, 0, 0)", (task_id, found[3] + 1))
        self._connection.commit()
        if task_id % 10:
            execute(ARTICLE_COMPLETE, (task_id,))
            self.done.append(task_id)
        else:
            execute(ARTICLE_FAIL, (task_id, "the foreign worker refuses"))
            self.failed.append(task_id)
        self._connection.commit()


@pytest.fixture
def foreign(dsn: str, audit: Audit) -> Iterator[Callable[[], ForeignWorker]]:
    """Starts such a worker, and stops it at the end."""
    started: list[ForeignWorker] = []

    def start() -> ForeignWorker:
        started.append(ForeignWorker(dsn))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.mark.unpooled
def test_a_worker_after_the_article_shares_the_table_with_us(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit, foreign: Callable[[], ForeignWorker]
) -> None:
    command = pgsched_cli("run", APP, "--processes", "2")
    command.wait_for("registered")
    ids: list[int] = []

    def ours() -> set[int]:
        return {entry.task_id for entry in audit.entries() if entry.parent == command.pid}

    def both_have_some() -> bool:
        ids.extend(rows.add("nap", count=20))
        return len(ours()) >= 10 and len(worker.done) + len(worker.failed) >= 10

    worker = foreign()
    eventually(both_have_some, "both run tasks", every=0.05)
    # What it has failed waits a minute for its next attempt.
    eventually(lambda: rows.count("status = 'completed'") == len(ids) - len(worker.failed), "all were run")
    worker.close()
    assert worker.error is None
    assert audit.executions() == dict.fromkeys(ids, 1)
    assert ours().isdisjoint(worker.done + worker.failed)
    assert {rows.row(number)[:3] for number in worker.failed} <= {("queued", 1, "the foreign worker refuses")}
    assert rows.count("status = 'completed' AND retry_count > 0") == 0


def test_a_table_after_the_article_is_adopted_and_run(server: Server, empty_dsn: str, pgsched_cli: CommandLine) -> None:
    server.sql(ARTICLE_TABLE, dsn=empty_dsn)
    audit, rows = Audit(server, empty_dsn), Rows(server, empty_dsn)
    statuses = ["queued", "failed", "completed", "processing", "processing", "odd"]
    ids = {}
    for status, age in zip(statuses, [0, 0, 0, 0, 600, 0], strict=True):
        ids[status, age] = server.value(
            "INSERT INTO scheduled_tasks (task_type, run_at, status, updated_at, error_log)"
            " VALUES ('nap', now() - interval '1 hour', %s, now() - make_interval(secs => %s), 'old') RETURNING id",
            status,
            age,
            dsn=empty_dsn,
        )
    pgsched_cli.environment |= {"PGSCHED_DSN": empty_dsn, "PGSCHED_TEST_AUDIT": empty_dsn}
    migrated = pgsched_cli.run("migrate")
    assert migrated.code == 0, migrated
    assert "6 rows" in migrated.out
    command = pgsched_cli("run", APP, "--processes", "1", "--reap-interval", "0.5")
    queued, orphan = ids["queued", 0], ids["processing", 600]
    eventually(lambda: len(audit.executions()) == 2 and rows.count("status = 'completed'") == 3, "both were run")
    assert audit.executions() == {queued: 1, orphan: 1}
    assert (rows.row(queued).status, rows.row(queued).retry_count) == ("completed", 0)
    assert (rows.row(orphan).status, rows.row(orphan).retry_count) == ("completed", 1)
    # The other one may be in the hands of a worker that still follows the article.
    assert rows.row(ids["processing", 0]).status == "processing"
    assert {rows.row(ids[status, 0]).status for status in ("failed", "completed", "odd")} == {
        "failed",
        "completed",
        "odd",
    }
    command.signal(15)
    assert command.wait().code == 0


def test_a_task_knows_itself_and_may_be_a_coroutine(rows: Rows, pgsched_cli: CommandLine) -> None:
    value = {"text": "naïve \N{SNOWMAN}", "list": [1, 2.5, None, True], "large": 2**53 + 1}
    [coroutine] = rows.add("asynchronous", {"value": value})
    [task] = rows.add("introspect", max_retries=5, queue="odd")
    pgsched_cli("run", APP, "--processes", "1")
    rows.all_ended()
    assert rows.row(coroutine)[:4] == ("completed", 0, None, value)
    told = rows.row(task).result
    assert told.pop("version")
    assert told.pop("fence") > 0
    assert told == {
        "id": task,
        "task_type": "introspect",
        "queue": "odd",
        "attempt": 1,
        "max_retries": 5,
        "remaining": True,
        "stop_requested": False,
        "stop_reason": None,
    }


def test_a_task_enqueues_tasks_without_being_told_the_database(
    rows: Rows, dsn: str, pgsched_cli: CommandLine, server: Server
) -> None:
    """The worker gets the DSN from its supervisor and from nowhere else."""
    [first] = rows.add("chain", {"left": 3})
    del pgsched_cli.environment["PGSCHED_DSN"]
    command = pgsched_cli("run", APP, "--processes", "1", "--dsn", dsn)
    rows.all_ended()
    priorities = server.sql("SELECT status, priority, result FROM scheduled_tasks ORDER BY id", dsn=dsn)
    assert len(priorities) == 4
    assert [(status, priority) for status, priority, _ in priorities] == [("completed", 0)] + [("completed", 3)] * 3
    assert priorities[0][2] > first
    assert priorities[-1][2] is None
    for process in command.processes():
        if process.pid != command.pid:
            assert dsn not in process.command


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_is_replaced_after_so_many_tasks(rows: Rows, pgsched_cli: CommandLine, method: str) -> None:
    ids = rows.add("pid", count=10)
    # Each new worker gets its first task when it is ready, not at the next look.
    options = ("--max-tasks-per-worker", "3", "--start-method", method, "--poll-interval", "60")
    command = pgsched_cli("run", APP, "--processes", "1", *options)
    rows.all_ended()
    pids = [rows.row(number).result for number in ids]
    assert len(set(pids)) == 4
    assert max(pids.count(pid) for pid in pids) == 3
    assert os.getpid() not in pids
    assert command.pid not in pids


def test_only_the_named_queues_are_served(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    [other], [mail] = rows.add("nap"), rows.add("letter", queue="mail")
    [same] = rows.add("nap", queue="images")
    pgsched_cli("run", APP, "--processes", "1", "--queues", "mail,images")
    eventually(lambda: rows.count("status = 'completed'") == 2, "two are run")
    [last] = rows.add("letter", queue="mail")
    eventually(lambda: rows.row(last).status == "completed", "another is run")
    assert set(audit.executions()) == {mail, same, last}
    assert rows.row(other).status == "queued"
    assert rows.row(mail).result == "mail"


@pytest.mark.parametrize("options", [(), ("--poll-only",)], ids=["listening", "polling"])
def test_a_future_task_starts_on_time(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit, options: tuple[str, ...]
) -> None:
    """F70: a sleeping supervisor wakes for the due time, not for the next tick of a poll interval of a minute."""
    [late] = rows.add("nap", due=4.0)
    pgsched_cli("run", APP, "--processes", "1", "--poll-interval", "60", *options)
    [entry] = eventually(audit.entries, "it is run")
    due = rows.row(late).run_at
    print(f"{(entry.started - due) * 1000:.0f} ms after it was due")
    assert entry.started >= due


@pytest.mark.unpooled
def test_an_idle_supervisor_starts_a_task_as_soon_as_it_is_committed(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """The hint makes the difference to a poll interval of a minute."""
    command = pgsched_cli("run", APP, "--processes", "1", "--poll-interval", "60")
    command.wait_for("registered")
    started = time.monotonic()
    [first] = rows.add("nap")
    eventually(lambda: rows.row(first).status == "completed", "the first")
    [second] = rows.add("nap")
    eventually(lambda: rows.row(second).status == "completed", "the second")
    print(f"two tasks in {time.monotonic() - started:.3f} s")
