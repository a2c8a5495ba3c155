"""Hosts whose wall clock is wrong, or is set while a task runs, and time zones that differ."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests import faketime
from tests.audit import Audit
from tests.history import History
from tests.support import FULL, Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

LEASE, LONG = (30.0, 60.0) if FULL else (8.0, 12.0)
"""Seconds of a lease, and of a task that takes longer."""
AHEAD = 600
LIMIT = 4
TASKS = f"""
from pgsched import App, Retry
from tests.audit import entry
from tests.chaos.app import pause

app = App()

@app.task(retry=Retry(max=3, base=0.0, cap=0.0))
def rest(seconds: float) -> None:
    with entry():
        pause(seconds)

@app.task(timeout={LIMIT})
def endless() -> None:
    with entry():
        pause(600)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = faketime.find(tmp_path_factory.mktemp("clock"))
    if found is None:
        pytest.skip(faketime.MISSING)
    return found


@pytest.fixture
def set_clock(library: str, tmp_path: Path, pgsched_cli: CommandLine) -> Iterator[Callable[[int], dict[str, str]]]:
    """Sets the clock of whoever has the environment that it returns."""
    clock = tmp_path / "clock"
    pgsched_cli.module("clocks", TASKS)
    started: set[int] = set()

    def set_clock(seconds: int) -> dict[str, str]:
        started.update(found.pid for command in pgsched_cli.commands for found in command.processes())
        faketime.set_clock(clock, seconds)
        return faketime.wrong_clock(library, clock)

    yield set_clock
    set_clock(0)
    for command in pgsched_cli.commands:
        command.close()
    faketime.forget(started)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("wrong", ["the one that runs it", "the other one"])
def test_f55_a_lease_goes_by_the_databases_clock_alone(
    wrong: str,
    server: Server,
    dsn: str,
    rows: Rows,
    pgsched_cli: CommandLine,
    audit: Audit,
    set_clock: Callable[[int], dict[str, str]],
) -> None:
    """F55: a task longer than a lease, and a supervisor ten minutes ahead."""
    history = History(server, dsn)
    [task_id] = rows.add("rest", {"seconds": LONG})
    options = ("run", "clocks:app", "--processes", "1", "--lease", f"{LEASE:g}", "--reap-interval", "0.5")
    ahead = set_clock(AHEAD)
    first = pgsched_cli(*options, environment=ahead if wrong == "the one that runs it" else {})
    eventually(audit.entries, "it runs")
    second = pgsched_cli(*options, environment=ahead if wrong == "the other one" else {})
    second.wait_for("registered")
    clocks = [says(command.err) for command in (first, second)]
    assert abs(abs(clocks[1] - clocks[0]) - AHEAD) < 100, "no clock was wrong"
    rows.all_ended(timeout=100)
    assert rows.row(task_id)[:2] == ("completed", 0)
    assert audit.executions() == history.claims() == {task_id: 1}
    assert "lease_lost" not in first.err + second.err


def says(log: str) -> float:
    """The time of the last line of a log, by its writer's clock."""
    return datetime.fromisoformat(re.findall(r"^(\S+) INFO ", log, re.MULTILINE)[-1]).timestamp()


@pytest.mark.parametrize("step", [-3600, 3600])
def test_f55_a_limit_goes_by_a_clock_that_nobody_sets(
    step: int,
    rows: Rows,
    pgsched_cli: CommandLine,
    audit: Audit,
    set_clock: Callable[[int], dict[str, str]],
) -> None:
    """F55: the clock is set by an hour while the task runs."""
    [task_id] = rows.add("endless", max_retries=0)
    command = pgsched_cli("run", "clocks:app", "--processes", "1", "--lease", "8", environment=set_clock(0))
    [entry] = eventually(audit.entries, "it runs")
    set_clock(step)
    rows.all_ended()
    [failure] = rows.failures(task_id)
    assert failure.outcome == "timed_out"
    assert LIMIT - 0.5 < failure.failed_at - entry.started < 30
    assert command.running
    assert "lease_lost" not in command.err


def test_f55_time_zones_of_process_and_session_shift_nothing(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F55."""
    odd = {"TZ": "Asia/Kolkata", "PGTZ": "America/St_Johns"}
    ended = pgsched_cli.run("enqueue", "nap", "{}", "--delay", "3", environment=odd)
    task_id = int(ended.out)
    pgsched_cli("run", "tests.system.tasks:app", "--processes", "1", environment=odd)
    [entry] = eventually(audit.entries, "it runs, and not in hours")
    assert entry.started >= rows.row(task_id).run_at
    [(delay, ahead)] = server.sql(
        "SELECT extract(epoch FROM run_at - created_at)::float8, started_at >= run_at FROM scheduled_tasks", dsn=dsn
    )
    assert delay == pytest.approx(3, abs=1)
    assert ahead
