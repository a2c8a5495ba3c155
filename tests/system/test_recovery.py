"""How often a task is run when it dies, its supervisor dies, or it only looks dead."""

import itertools
import signal

import pytest

from tests.audit import Audit
from tests.history import History
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def test_f66_executions_are_one_more_than_retries_whatever_the_failure(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F65, F66."""
    history = History(server, dsn)
    ways = [["raise"], ["kill"], ["oversleep"], ["raise", "kill", "oversleep"]]
    wanted = {
        rows.add("doomed", {"ways": way}, max_retries=retries)[0]: (retries, way)
        for retries, way in itertools.product([0, 1, 3], ways)
    }
    pgsched_cli("run", APP, "--processes", "4")
    rows.all_ended(timeout=60)
    executions, claims = audit.executions(), history.claims()
    kinds = {"raise": "raised", "kill": "crashed", "oversleep": "timed_out"}
    for task_id, (retries, way) in wanted.items():
        row, failures = rows.row(task_id), rows.failures(task_id)
        assert (row.status, row.retry_count) == ("failed", retries), way
        assert executions[task_id] == claims[task_id] == retries + 1, way
        assert [failure.attempt for failure in failures] == list(range(1, retries + 2))
        assert [failure.outcome for failure in failures] == [
            kinds[each] for each in itertools.islice(itertools.cycle(way), retries + 1)
        ]
        assert row.error_log == failures[-1].error


def test_f65_a_task_that_kills_its_supervisor_ends_as_well(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    """F65: nobody but the reaper sees it. F61: the successor takes over at once, and looks again later."""
    [poison] = rows.add("doomed", {"ways": ["kill the supervisor"]}, max_retries=2)
    [after] = rows.add("nap", due=0.5, max_retries=100)
    # The lease is so long that only the successor's look at its neighbours can bring the task back in time.
    options = ("--processes", "1", "--lease", "60", "--reap-interval", "0.5")
    command = pgsched_cli("run", APP, *options)
    deaths = 0

    def ended() -> bool:
        nonlocal command, deaths
        if not command.running:
            assert command.wait().code == -signal.SIGKILL, command
            deaths += 1
            command = pgsched_cli("run", APP, *options)
        return not rows.count("status IN ('queued', 'processing')")

    eventually(ended, "both tasks have ended", timeout=60, every=0.05)
    row, failures = rows.row(poison), rows.failures(poison)
    assert (row.status, row.retry_count, deaths) == ("failed", 2, 3)
    assert audit.executions()[poison] == 3
    assert [(failure.attempt, failure.outcome) for failure in failures] == [(1, "lost"), (2, "lost"), (3, "lost")]
    assert row.error_log is not None
    assert "died or lost its lease" in row.error_log
    assert rows.row(after).status == "completed"


@pytest.mark.slow
def test_f58_tasks_longer_than_the_lease_are_run_once_by_two_supervisors(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F58, F61: whether they run or wait."""
    history = History(server, dsn)
    ids = rows.add("nap", {"seconds": 9}, count=6)
    options = ("--processes", "1", "--lease", "8", "--reap-interval", "0.5")
    commands = [pgsched_cli("run", APP, *options) for _ in range(2)]
    rows.all_ended(timeout=90)
    assert audit.executions() == dict.fromkeys(ids, 1)
    assert {entry.parent for entry in audit.entries()} == {command.pid for command in commands}
    assert all(rows.row(task_id).retry_count == 0 for task_id in ids)
    assert max(history.claims().values()) == 1


def test_f63_a_task_that_holds_the_interpreter_for_longer_than_the_lease_is_run_once(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F59, F63: the lease is the parent's, and user code cannot starve it."""
    history = History(server, dsn)
    ids = rows.add("hold_interpreter", {"seconds": 12}, count=2)
    options = ("--lease", "8", "--reap-interval", "0.5")
    holder = pgsched_cli("run", APP, "--processes", "2", *options)
    eventually(lambda: len(audit.entries()) == 2, "both run")
    other = pgsched_cli("run", APP, "--processes", "1", *options)
    rows.all_ended()
    assert audit.executions() == dict.fromkeys(ids, 1)
    assert [rows.row(task_id)[:4] for task_id in ids] == [("completed", 0, None, "held")] * 2
    assert history.claims() == dict.fromkeys(ids, 1)
    for command in (holder, other):
        assert "lease_lost" not in command.err


def test_the_run_of_a_row_that_is_gone_says_nothing_of_another_with_its_numbers(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    """Who empties the table and has its ids begin anew makes rows with the id and the fence of what runs."""
    pgsched_cli.module(
        "waiting",
        "import pathlib, time\n"
        "from pgsched import App\n"
        "app = App()\n"
        "@app.task\n"
        "def wait(name: str) -> str:\n"
        "    while not pathlib.Path(name).exists():\n"
        "        time.sleep(0.01)\n"
        "    return name\n",
    )
    pgsched_cli("run", "waiting:app", "--processes", "2")

    def begun(name: str) -> int:
        server.sql("TRUNCATE scheduled_tasks RESTART IDENTITY", dsn=dsn)
        [task_id] = rows.add("wait", {"name": name})
        eventually(lambda: rows.row(task_id).status == "processing", "the task runs")
        return task_id

    ids = begun("before"), begun("after")
    assert ids[0] == ids[1]
    (pgsched_cli.directory / "before").touch()
    (pgsched_cli.directory / "third").touch()
    # Both slots are taken: a third task is run when the first one has ended, whose report was read by then.
    [third] = rows.add("wait", {"name": "third"})
    eventually(lambda: rows.row(third).status == "completed", "the third task's end")
    assert rows.row(ids[1]).status == "processing"
    (pgsched_cli.directory / "after").touch()
    eventually(lambda: rows.row(ids[1]).status == "completed", "the task's end")
    assert rows.row(ids[1]).result == "after"
