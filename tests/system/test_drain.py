"""The orderly stop: what runs may finish, what waits goes back, and no row stays behind under a name that is gone."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audit import Audit
from tests.command import Command
from tests.history import History
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.gate import CLAIM, END, Gate
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
ROUNDS, AT_ONCE = 2, 4
"""Random stops."""


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def ends_orderly(command: Command) -> None:
    ended = command.wait()
    assert ended.code == 0, command
    assert "Traceback" not in ended.err, command
    eventually(lambda: not command.processes(), "no process is left over")


def signal_group(command: Command) -> None:
    os.killpg(command.pid, signal.SIGTERM)


def signal_each(command: Command) -> None:
    for found in sorted(command.processes(), key=lambda found: found.pid, reverse=True):
        os.kill(found.pid, signal.SIGTERM)


@pytest.mark.parametrize("stop", [signal_group, signal_each])
def test_f28_a_signal_to_every_process_lets_running_tasks_finish(
    stop: Callable[[Command], None], rows: Rows, pgsched_cli: CommandLine, audit: Audit, tmp_path: Path
) -> None:
    """F28: the group as a supervisor of the old kind signals it, and every pid of the cgroup as systemd does."""
    door = tmp_path / "door"
    first = rows.add("hold", {"until": str(door)}, count=2)
    command = pgsched_cli("run", APP, "--processes", "2")
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    later = rows.add("nap", {"seconds": 1.0}, count=4)
    stop(command)
    command.wait_for("state=draining")
    door.touch()
    ends_orderly(command)
    assert {rows.row(task_id).status for task_id in first} == {"completed"}
    assert {rows.row(task_id)[:2] for task_id in later} == {("queued", 0)}
    assert set(audit.executions()) == set(first), "a task was started after the signal"
    assert rows.count("claimed_by IS NOT NULL AND status = 'queued'") == 0


def test_f31_at_the_drain_timeout_tasks_are_given_back_at_no_cost(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F31, the dynamic half: the supervisor itself ends what is left, long before a service manager would."""
    ids = rows.add("nap", {"seconds": 60.0}, count=2)
    command = pgsched_cli("run", APP, "--processes", "2", "--drain-timeout", "0.7")
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    signalled = time.monotonic()
    command.signal(signal.SIGTERM)
    ends_orderly(command)
    assert time.monotonic() - signalled > 0.7, "the tasks did not get their time"
    assert {rows.row(task_id)[:3] for task_id in ids} == {("queued", 0, None)}
    assert not any(rows.failures(task_id) for task_id in ids)
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0
    assert set(audit.executions().values()) == {1}


@pytest.mark.parametrize("drain_timeout", ["0", "20"])
def test_f26_a_claim_under_way_at_the_signal_leaves_no_row_behind(
    drain_timeout: str, server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F26: before the claim's commit."""
    gate = Gate(server, dsn, CLAIM)
    command = pgsched_cli("run", APP, "--processes", "2", "--drain-timeout", drain_timeout)
    command.wait_for("registered")
    with gate.closed():
        ids = rows.add("nap", count=3)
        gate.wait_for_arrival()
        command.signal(signal.SIGTERM)
        command.wait_for("state=draining")
    ends_orderly(command)
    assert {rows.row(task_id)[:2] for task_id in ids} == {("queued", 0)}
    assert not audit.executions()
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0


@pytest.mark.parametrize("drain_timeout", ["0", "20"])
def test_f26_a_settle_under_way_at_the_signal_is_written_once(
    drain_timeout: str, server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F26: after the result and before the final update."""
    history = History(server, dsn)
    gate = Gate(server, dsn, END)
    command = pgsched_cli("run", APP, "--processes", "1", "--drain-timeout", drain_timeout)
    with gate.closed():
        [task_id] = rows.add("nap")
        gate.wait_for_arrival()
        command.signal(signal.SIGTERM)
        command.wait_for("state=draining")
    ends_orderly(command)
    assert rows.row(task_id)[:4] == ("completed", 0, None, "rested")
    assert audit.executions() == {task_id: 1}
    assert set(history.settles().values()) == {1}
    assert "fenced" not in command.err


def test_f26_stops_at_random_times_leave_no_row_and_lose_no_task(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit, dice: random.Random
) -> None:
    """F26: in small; every task is run at least once over all restarts, and once where it ended."""
    history = History(server, dsn)
    rows.add("nap", {"seconds": 0.005}, count=250)
    options = ("--processes", "2", "--drain-timeout", "0.2", "--lease", "60", "--reap-interval", "60")
    for _ in range(ROUNDS):
        commands = [pgsched_cli("run", APP, *options) for _ in range(AT_ONCE)]
        for command in commands:
            command.wait_for("registered")
        for command in commands:
            at = time.monotonic() + dice.random() ** 2 * 0.5
            eventually(lambda at=at: time.monotonic() >= at)  # type: ignore[misc]
            command.signal(signal.SIGTERM)
        for command in commands:
            assert command.wait().code == 0, command
            assert "fenced" not in command.err, command
        assert rows.count("status = 'processing'") == 0, "a row was left under a name that is gone"
        assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0
        if not rows.count("status = 'queued'"):
            rows.add("nap", {"seconds": 0.005}, count=100)
    last = pgsched_cli("run", APP, *options)
    rows.all_ended()
    last.signal(signal.SIGTERM)
    assert last.wait().code == 0, last
    assert rows.count("status <> 'completed' OR retry_count <> 0") == 0
    executions, claims = audit.executions(), history.claims()
    assert len(executions) == rows.count("true"), "a task was lost"
    assert all(executions[task_id] <= claims[task_id] for task_id in executions)
    given_back = {change.task_id for change in history.changes() if change.after == "queued"}
    assert all(count == 1 for task_id, count in executions.items() if task_id not in given_back)
