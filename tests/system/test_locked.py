"""Rows that somebody keeps locked: a session by hand, a client that was frozen between its statement and its commit."""

import signal
from pathlib import Path

import psycopg
import pytest

from tests.audit import Audit
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def test_a_row_that_somebody_keeps_locked_delays_no_other(
    dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit, tmp_path: Path
) -> None:
    """Neither the verdicts that would have been written with its own, nor claims; and it is written when it can be."""
    door = tmp_path / "door"
    [locked, beside] = ids = rows.add("hold", {"until": str(door)}, count=2)
    command = pgsched_cli("run", APP, "--processes", "2", "--db-timeout", "1s")
    eventually(lambda: len(audit.entries()) == 2, "both run")
    with psycopg.connect(dsn, application_name="tests") as holder:
        holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", [locked])
        door.touch()
        eventually(lambda: rows.row(beside).status == "completed", "the other is written")
        ids += rows.add("nap", count=20)
        eventually(lambda: rows.count("status = 'completed'") == 21, "others are run")
        assert rows.row(locked).status == "processing"
        holder.rollback()
    rows.all_ended()
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    assert audit.executions() == dict.fromkeys(ids, 1)
    assert rows.count("status = 'completed'") == 22
