"""A server that is restarted, or wants another password from now on."""

import re
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.faults.conftest import OwnServer
from tests.proxy import Proxy
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


def test_f37_a_restart_of_the_server_repeats_no_task(own: OwnServer, pgsched_cli: CommandLine, tmp_path: Path) -> None:
    """F37."""
    note = tmp_path / "note"
    rows = Rows(own.server, own.dsn)
    ids = rows.add("tick", {"seconds": 0.02, "note": str(note)}, count=150)
    command = pgsched_cli("run", APP, "--processes", "2", "--lease", "100", environment={"PGSCHED_DSN": own.dsn})
    eventually(lambda: note.exists() and len(note.read_text().split()) > 20, "some have run")
    own.restart()
    rows = Rows(own.server, own.dsn)
    rows.all_ended()
    assert rows.count("status = 'completed' AND retry_count = 0") == len(ids)
    assert Counter(map(int, note.read_text().split())) == Counter(ids)
    command.wait_for(" database_back ")
    # At the stop it may find out that a connection, unused since, is dead too.
    told = command.err
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    for event in ("database_lost", "database_back"):
        assert told.count(f" {event} ") == 1, command
    assert "Traceback" not in command.err


def test_f48_a_password_file_is_read_for_each_connection(
    own: OwnServer, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F48: and a wrong password is an outage like any other: told, and not tried all the time."""
    secrets = tmp_path / "passwords"

    def tell(password: str) -> None:
        secrets.write_text(f"*:*:*:app:{password}\n")
        secrets.chmod(0o600)

    def change(password: str) -> None:
        own.server.sql(f"ALTER ROLE app PASSWORD '{password}'")

    own.server.sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 's3cr3t-1'")
    own.demand_password("app")
    tell("s3cr3t-1")
    with closing(Proxy(make_conninfo(own.dsn, user="app", passfile=str(secrets)))) as proxy:
        rows = Rows(own.server, own.dsn)
        command = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_DSN": proxy.dsn})
        rows.add("tick")
        rows.all_ended()
        change("s3cr3t-2")
        tell("s3cr3t-2")
        own.server.terminate(own.dsn, "pgsched %")
        rows.add("tick")
        rows.all_ended()
        assert "authentication" not in command.err
        change("s3cr3t-3")
        own.server.terminate(own.dsn, "pgsched %")
        command.wait_for("password authentication failed")
        before, until = proxy.accepted, time.monotonic() + 3
        eventually(lambda: time.monotonic() > until)
        assert proxy.accepted - before < 30, "it hammers the server"
        tell("s3cr3t-3")
        rows.add("tick")
        rows.all_ended()
        command.signal(signal.SIGTERM)
        assert command.wait().code == 0, command
        assert "s3cr3t" not in command.err, "a password was logged"


@pytest.mark.parametrize("name", ["scheduled_tasks_live", "pgsched_supervisors"])
def test_f84_a_table_that_vanishes_while_it_runs(
    name: str, rows: Rows, server: Server, dsn: str, pgsched_cli: CommandLine
) -> None:
    """F84: told in a few lines, and found again."""
    command = pgsched_cli("run", APP, "--processes", "1", "--lease", "60", "--reap-interval", "0.3")
    rows.add("tick")
    rows.all_ended()
    server.sql(f"ALTER TABLE {name} RENAME TO elsewhere", dsn=dsn)
    command.wait_for("does not exist")
    until = time.monotonic() + 3
    eventually(lambda: time.monotonic() > until)
    assert command.running, command
    server.sql(f"ALTER TABLE elsewhere RENAME TO {name}", dsn=dsn)
    rows.add("tick")
    rows.all_ended()
    assert len(re.findall(r"^\S+ (?:WARNING|ERROR) ", command.err, re.MULTILINE)) < 12, command
    assert "Traceback" not in command.err
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
