"""Which task runs next, and where: priorities, the unknown, the future, the tiny beside the long, the hoard."""

import functools
import itertools
import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests.audit import Audit
from tests.support import FULL, Server, database_of, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
FUTURE, QUIET = (1_000_000, 10.0) if FULL else (100_000, 3.0)
"""Tasks that are due tomorrow, and seconds in which nothing is due."""


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def test_tiny_tasks_go_on_beside_a_long_one(rows: Rows, pgsched_cli: CommandLine, tmp_path: Path) -> None:
    """Those that were sent ahead to the worker of a task that turns out long are taken back."""
    door = tmp_path / "door"
    pgsched_cli("run", APP, "--processes", "2")
    # Teaches the supervisor that they are tiny.
    rows.add("tick", count=500)
    rows.all_ended()
    rows.add("tick", count=300)
    [long] = rows.add("tick", {"until": str(door)})
    rows.add("tick", count=300)
    eventually(lambda: rows.row(long).status == "processing", "the long one runs")
    for _ in range(5):
        rows.add("tick", count=20)
        eventually(lambda: not rows.count("status IN ('queued', 'processing')") - 1, "the tiny ones are through")
    assert rows.row(long).status == "processing"
    door.touch()
    rows.all_ended()


@pytest.mark.unpooled
def test_a_row_that_was_inserted_before_a_supervisor_slept_and_committed_while_it_does_is_found(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    """Its hint was not sent, and the next poll is far away."""

    def has_looked() -> bool:
        work = (backend for backend in server.backends(dsn) if backend.application_name == "pgsched work")
        return any(backend.state == "idle" and "WITH RECURSIVE head" in backend.query for backend in work)

    with psycopg.connect(dsn, application_name="tests") as late:
        late.execute("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('nap', now())")
        pgsched_cli("run", APP, "--processes", "1", "--poll-interval", "100")
        listening = "SELECT bool_or(listening) FROM pgsched_supervisors"
        eventually(lambda: server.value(listening, dsn=dsn), "it has asked to be woken")
        eventually(has_looked, "it sleeps")
        late.commit()
    rows.all_ended()


def test_f71_one_supervisor_does_not_hoard_what_another_could_run(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    ids = rows.add("nap", {"seconds": 1.5}, count=2)
    first = pgsched_cli("run", APP, "--processes", "2")
    eventually(lambda: len(audit.entries()) == 2, "the first runs two")
    second = pgsched_cli("run", APP, "--processes", "2")
    second.wait_for("registered")
    ids += rows.add("nap", {"seconds": 1.5}, count=8)
    most = 0

    def ended() -> bool:
        nonlocal most
        holds = server.sql(
            "SELECT count(*) FROM scheduled_tasks WHERE status = 'processing' GROUP BY claimed_by", dsn=dsn
        )
        most = max([most, *(count for (count,) in holds)])
        return not rows.count("status IN ('queued', 'processing')")

    eventually(ended, "all have ended")
    assert most == 2, "more was claimed than could be run"
    entries = audit.entries()
    assert audit.executions() == dict.fromkeys(ids, 1)
    shares = [sum(entry.parent == command.pid for entry in entries) for command in (first, second)]
    print(f"shares {shares}")
    assert min(shares) >= 2


def test_f67_what_nobody_here_knows_is_left_alone_and_delays_nothing(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    strange = rows.add("not yet deployed", count=100, priority=10)
    near = rows.add("Nap", priority=5) + rows.add("nap ", priority=5) + rows.add("", priority=5)
    known = rows.add("nap", count=10)
    pgsched_cli("run", APP, "--processes", "1")
    eventually(lambda: rows.count("status = 'completed'") == 10, "the known ones are run")
    assert audit.executions() == dict.fromkeys(known, 1)
    left = server.sql(
        "SELECT status, fence, retry_count FROM scheduled_tasks WHERE id = ANY (%s)", strange + near, dsn=dsn
    )
    assert left == [("queued", 0, 0)] * 103
    # The rolling deploy goes on.
    pgsched_cli.module("newer", NEWER)
    pgsched_cli("run", "newer:app", "--processes", "1")
    eventually(lambda: rows.count("status = 'completed'") == 110, "the new code runs the rest")
    assert rows.count("status = 'queued'") == 3


NEWER = """
from pgsched import App

app = App()

@app.task(name="not yet deployed")
def new() -> None: ...
"""


@pytest.mark.unpooled
def test_f70_future_tasks_of_high_priority_cost_nothing(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """Just after they came: the planner knows nothing of them."""
    rows.add("nap", count=FUTURE, due=86400, priority=10)
    leave_an_answer(server, dsn)
    now = rows.add("nap", count=10)
    commands = [pgsched_cli("run", APP, "--processes", "1") for _ in range(2)]
    for command in commands:
        command.wait_for("registered")
    started = time.monotonic()
    eventually(lambda: rows.count("status = 'completed'") == 10, "those that are due are run")
    print(f"ten due tasks in {time.monotonic() - started:.3f} s")
    assert audit.executions() == dict.fromkeys(now, 1)
    before = read_rows(server, dsn)
    # Each of these makes both look, and one of them find it.
    for number in range(1, 6):
        [task] = rows.add("nap", priority=number)
        eventually(functools.partial(completed, rows, task), "it is run")
    # Each of our sessions reports what it has read about once a second.
    eventually(lambda: read_rows(server, dsn) - before >= 5, "the statistics arrive")
    read = read_rows(server, dsn) - before
    print(f"{read} live rows were read for five tasks")
    assert read < 5_000
    began, before = time.monotonic(), transactions(server, dsn)
    until = began + QUIET
    eventually(lambda: time.monotonic() >= until)
    rate = (transactions(server, dsn) - before) / (time.monotonic() - began)
    print(f"{rate:.1f} transactions a second of two idle supervisors")
    # Each looks once a second, and renews and reaps every five; a loop that does not rest makes hundreds.
    assert rate < 60


def leave_an_answer(server: Server, dsn: str) -> None:
    """Another supervisor has counted the queues, and so slowly that nobody else does: that would read all there is."""
    server.sql(
        "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes, lease_until,"
        " depths, depths_at, depths_took)"
        " VALUES ('elsewhere', 'b', 1, 1, 1, 1, now() + interval '1 day', '[]', now(), '10 minutes')",
        dsn=dsn,
    )


def completed(rows: Rows, task_id: int) -> bool:
    return rows.row(task_id).status == "completed"


def transactions(server: Server, dsn: str) -> int:
    """How many there were so far in the test's database."""
    return int(server.value("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", database_of(dsn)))


def read_rows(server: Server, dsn: str) -> int:
    """Rows and index entries of the live partition that anybody has read so far."""
    return int(
        server.value(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'scheduled_tasks_live'",
            dsn=dsn,
        )
    )


def test_f75_higher_priorities_go_first_and_equals_by_their_due_time(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """Strict: a low priority waits until nothing higher is due."""
    low = rows.add("nap", count=5, priority=-1, due=-60)
    late, early = rows.add("nap", count=5, due=-10), rows.add("nap", count=5, due=-20)
    high = rows.add("nap", count=5, priority=10)
    pgsched_cli("run", APP, "--processes", "1")
    rows.all_ended()
    assert [entry.task_id for entry in audit.entries()] == high + early + late + low


def test_f75_a_retry_waits_its_time_and_lets_others_pass(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    [failing] = rows.add("refuse", max_retries=5, due=-10)
    normal = rows.add("nap", {"seconds": 0.01}, count=150)
    pgsched_cli("run", APP, "--processes", "1")
    rows.all_ended()
    assert (rows.row(failing).status, rows.row(failing).retry_count) == ("failed", 5)
    assert audit.executions() == dict.fromkeys(normal, 1) | {failing: 6}
    order = [entry.task_id for entry in audit.entries()]
    runs = [len(list(group)) for task_id, group in itertools.groupby(order) if task_id == failing]
    assert order[0] == failing
    assert len(runs) >= 3, "its attempts came one right after the other"


def test_f75_a_recovered_task_keeps_its_place(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit, tmp_path: Path
) -> None:
    door = tmp_path / "door"
    [important] = rows.add("hold", {"until": str(door)}, priority=10)
    options = ("--processes", "1", "--lease", "60")
    command = pgsched_cli("run", APP, *options)
    eventually(audit.entries, "it runs")
    command.signal(signal.SIGKILL)
    command.wait()
    door.touch()
    rows.add("nap", {"seconds": 0.05}, count=40, priority=1)
    pgsched_cli("run", APP, *options)
    rows.all_ended()
    order = [entry.task_id for entry in audit.entries()]
    assert order[0] == important
    # The successor may have begun with others before it has found its predecessor dead.
    assert order[1:].index(important) < 30
    assert rows.row(important).retry_count == 1
