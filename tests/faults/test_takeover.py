"""A supervisor that falls silent and comes back: what it has finished meanwhile changes nothing any more."""

import os
import signal

import pytest

from tests.audit import Audit
from tests.support import eventually, gone
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

TAKEN = """
import os, time
from pgsched import App, Retry, current_task
from tests.audit import entry

app = App()

@app.task(retry=Retry(max=3, base=0.0, cap=0.0))
def slow(first: float, second: float) -> int:
    with entry():
        time.sleep(first if current_task().attempt == 1 else second)
    return os.getppid()
"""


@pytest.mark.parametrize("first", [60.0, 3.0], ids=["it still runs", "it has been done"])
def test_f59_who_has_lost_a_task_writes_nothing(
    first: float, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F59: the supervisor alone is stopped; its worker goes on, and reports to nobody."""
    pgsched_cli.module("taken", TAKEN)
    options = ("--processes", "1", "--lease", "4", "--reap-interval", "0.3")
    [task_id] = rows.add("slow", {"first": first, "second": 2.0})
    silent = pgsched_cli("run", "taken:app", *options)
    [entry] = eventually(audit.entries, "it runs")
    os.kill(silent.pid, signal.SIGSTOP)
    other = pgsched_cli("run", "taken:app", *options)
    eventually(lambda: len(audit.entries()) == 2, "it was taken over")
    if first < 10:
        eventually(lambda: rows.row(task_id).status == "completed", "it was done again")
        assert audit.entries()[0].ended is not None
    os.kill(silent.pid, signal.SIGCONT)
    silent.wait_for("lease_lost")
    silent.wait_for(" registered ", after=1)
    if first > 10:
        eventually(lambda: gone(entry.pid), "its worker was stopped")
    eventually(lambda: rows.row(task_id).status == "completed", "the other one is done")
    row = rows.row(task_id)
    assert (row.status, row.retry_count, row.result) == ("completed", 1, other.pid)
    assert audit.executions() == {task_id: 2}
    assert (audit.entries()[0].ended is None) == (first > 10)
    silent.signal(signal.SIGTERM)
    assert silent.wait().code == 0, silent
    assert silent.err.count("lease_lost") == 1, silent
    assert rows.row(task_id) == row
