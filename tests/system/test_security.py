"""A supervisor with no more than its grants, and no password anywhere but where it is needed."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.command import Command
from tests.roles import Role, role
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
OTHER_SECRET = "an0ther-s3cret"

ENQUEUERS = """
import os, sys, time
from pgsched import App

app, other = App(), App()

@app.task
def first() -> dict[str, bool]:
    before = "psycopg" in sys.modules
    second.enqueue()
    # An App that nobody has configured.
    elsewhere.enqueue()
    return {"before": before, "after": "psycopg" in sys.modules}

@app.task
def second() -> dict[str, bool]:
    return {name: name in os.environ for name in ("PGSCHED_DSN", "PGPASSWORD")}

@app.task(name="elsewhere")
def here() -> None:
    pass

@other.task
def elsewhere() -> None:
    pass

@app.task
def stay() -> None:
    time.sleep(60)

@app.task
def bad() -> None:
    raise ValueError(f"cannot use {os.environ['PGSCHED_DSN']}")
"""


@pytest.fixture
def supervisor(dsn: str) -> Iterator[Role]:
    with role(dsn, "supervisor") as made:
        yield made


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


@pytest.mark.usefixtures("audit")
def test_a_supervisor_needs_no_more_than_its_grants(
    server: Server, dsn: str, supervisor: Role, rows: Rows, pgsched_cli: CommandLine
) -> None:
    environment = {"PGSCHED_DSN": supervisor.dsn}
    [old] = rows.add("nap")
    options = ("--processes", "2", "--lease", "60", "--reap-interval", "0.5")
    first = pgsched_cli("run", APP, *options, environment=environment)
    rows.all_ended()
    [held] = rows.add("nap", {"seconds": 3})
    [cancelled] = rows.add("nap", {"seconds": 60})
    eventually(lambda: {rows.row(each).status for each in (held, cancelled)} == {"processing"})
    assert pgsched_cli.run("cancel", str(cancelled), environment=environment).code == 0
    first.signal(signal.SIGKILL)
    first.wait()
    [waiting] = rows.add("chain", {"left": 2})
    failing = [rows.add("doomed", {"ways": [way]}, max_retries=1)[0] for way in ("raise", "kill", "oversleep")]
    second = pgsched_cli("run", APP, *options, environment=environment)
    rows.all_ended(timeout=60)
    assert {rows.row(each).status for each in (old, held, waiting)} == {"completed"}
    assert {rows.row(each).status for each in failing} == {"failed"}
    assert all(len(rows.failures(each)) == 2 for each in failing)
    second.signal(signal.SIGTERM)
    assert second.wait().code == 0
    for command in (("retry", str(failing[0])), ("cancel", str(failing[0]))):
        assert pgsched_cli.run(*command, environment=environment).code == 0, command
    third = pgsched_cli("run", APP, *options, "--prune-older-than", "0", environment=environment)
    third.wait_for("pruned")
    third.signal(signal.SIGTERM)
    assert third.wait().code == 0
    assert pgsched_cli.run("prune", "--older-than", "0", environment=environment).code == 0
    assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == 0
    assert "permission denied" not in first.err + second.err + third.err


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_tasks_enqueue_without_being_told_and_nobody_else_learns_the_password(
    server: Server, dsn: str, supervisor: Role, rows: Rows, pgsched_cli: CommandLine, method: str
) -> None:
    pgsched_cli.module("enqueuers", ENQUEUERS)
    environment = {"PGSCHED_DSN": supervisor.dsn, "PGPASSWORD": OTHER_SECRET}
    command = pgsched_cli("run", "enqueuers:app", "--processes", "2", "--start-method", method, environment=environment)
    [first], [bad] = rows.add("first"), rows.add("bad", max_retries=0)
    rows.all_ended()
    eventually(lambda: server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == 4)
    rows.all_ended()
    assert rows.row(first).result == {"before": False, "after": True}
    [[found]] = server.sql("SELECT result FROM scheduled_tasks WHERE task_type = 'second'", dsn=dsn)
    assert found == {"PGSCHED_DSN": True, "PGPASSWORD": True}
    assert rows.row(bad).status == "failed"
    [staying] = rows.add("stay")
    eventually(lambda: rows.row(staying).status == "processing")
    shown = {**_processes(command), **_pages(command), **_database(server, dsn)}
    command.signal(signal.SIGTERM)
    command.signal(signal.SIGINT)
    ended = command.wait()
    shown |= {"standard output": ended.out, "standard error": ended.err}
    assert len(shown) > 9
    for name, text in shown.items():
        assert supervisor.password not in text, name
        assert OTHER_SECRET not in text, name


def test_tasks_enqueue_where_only_libpqs_variables_name_the_database(
    server: Server, dsn: str, given_dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    pgsched_cli.module("enqueuers", ENQUEUERS)
    del pgsched_cli.environment["PGSCHED_DSN"]
    given = conninfo_to_dict(given_dsn)
    variables = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
    environment = {variables[name]: str(value) for name, value in given.items() if name in variables}
    command = pgsched_cli("run", "enqueuers:app", "--processes", "2", environment=environment)
    [first] = rows.add("first", max_retries=0)
    rows.all_ended()
    assert rows.row(first).status == "completed", rows.failures(first)
    eventually(lambda: server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == 3)
    rows.all_ended()
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0


def _processes(command: Command) -> dict[str, str]:
    """Command lines of all processes; environments of all but the one that was given the secrets."""
    found = {}
    for each in command.processes():
        for name in ("cmdline", "environ"):
            if name == "cmdline" or each.pid != command.pid:
                path = Path(f"/proc/{each.pid}/{name}")
                found[str(path)] = path.read_bytes().decode(errors="replace")
    assert len(found) >= 1 + 2 * 3
    return found


def _pages(command: Command) -> dict[str, str]:
    address = command.wait_for(r"metrics_served.*?(http://[^\s\"]+)")[1]
    found = {}
    for page in ("/metrics", "/healthz"):
        with urllib.request.urlopen(address + page, timeout=20) as answer:
            found[page] = answer.read().decode()
    return found


def _database(server: Server, dsn: str) -> dict[str, str]:
    """What pgsched itself has put there; what a task has said in an error is the task's."""
    tables = ("pgsched_supervisors", "pgsched_schema")
    found = {table: json.dumps(server.sql(f"SELECT t::text FROM {table} AS t", dsn=dsn)) for table in tables}
    sessions = "SELECT application_name, query FROM pg_stat_activity WHERE datname = current_database()"
    return {**found, "sessions": json.dumps(server.sql(sessions, dsn=dsn))}
