"""A schema of its own and nothing else: what the benchmarks leave, what they refuse, whose processor time they see."""

import os
import secrets
import signal
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks import server as benchmarked
from pgsched.errors import UsageError
from tests.proxy import Proxy
from tests.support import ROOT, Process, Server, database_of, descendants, eventually, gone, process

SCHEMAS = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pgsched\\_bench\\_%%'"


def test_a_fresh_schema_is_gone_after_a_failure(server: Server, empty_dsn: str) -> None:
    measured = benchmarked.Server(empty_dsn)

    def fail() -> None:
        with measured.fresh() as one, measured.fresh() as other:
            server.sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('t', now())", dsn=one)
            assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=other) == 0
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert server.value(SCHEMAS, dsn=empty_dsn) == 0


def test_a_forgotten_transaction_does_not_keep_the_schema(server: Server, empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as bystander:
        bystander.execute("CREATE TABLE theirs (); SELECT FROM theirs")
        with benchmarked.Server(empty_dsn).fresh() as dsn:
            forgotten = psycopg.connect(dsn)
            forgotten.execute("SELECT FROM scheduled_tasks")
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")
        bystander.execute("SELECT 1")
    assert server.value(SCHEMAS, dsn=empty_dsn) == 0


def test_no_superuser_is_needed(server: Server, empty_dsn: str) -> None:
    role = f"bench_{secrets.token_hex(4)}"
    server.sql(f"CREATE ROLE {role} LOGIN")
    server.sql(f'GRANT CREATE, CONNECT ON DATABASE "{database_of(empty_dsn)}" TO {role}')
    try:
        measured = benchmarked.Server(make_conninfo(empty_dsn, user=role))
        with measured.fresh() as dsn:
            assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == 0
        assert measured.counters().commits > 0
        assert measured.about()[1]["fsync"] in ("on", "off")
    finally:
        server.sql(f"DROP OWNED BY {role}", dsn=empty_dsn)
        server.sql(f"DROP ROLE {role}")


def test_what_the_dsn_says_of_tls_is_passed_on() -> None:
    given = "postgresql://me@db.example/work?sslmode=verify-full&sslrootcert=/ca.pem&options=-c%20jit%3Doff"
    kept = conninfo_to_dict(given)
    found = conninfo_to_dict(benchmarked.with_search_path(given, "mine"))
    assert found.pop("options") == f"{kept.pop('options')} -c search_path=mine"
    assert found == kept


def test_options_of_the_environment_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c jit=off")
    found = conninfo_to_dict(benchmarked.with_search_path("host=db.example", "mine"))
    assert found["options"] == "-c jit=off -c search_path=mine"


def test_a_table_of_somebody_else_is_refused(server: Server, dsn: str) -> None:
    with pytest.raises(UsageError, match=r"public\.scheduled_tasks"), benchmarked.server(dsn):
        pass
    done = subprocess.run(
        _command("drain", dsn), env=_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: --dsn leads to public.scheduled_tasks")
    assert done.stderr.count("\n") == 1
    assert server.value(SCHEMAS, dsn=dsn) == 0


def test_processor_time_holds_that_of_sessions_which_have_ended(server: Server, empty_dsn: str) -> None:
    measured = benchmarked.Server(empty_dsn)
    before = measured.cpu_seconds()
    assert measured.local
    assert before is not None
    pid = server.value("SELECT pg_backend_pid() FROM generate_series(1, 2000000) OFFSET 1999999", dsn=empty_dsn)
    eventually(lambda: process(pid) is None)
    after = measured.cpu_seconds()
    assert after is not None
    assert after - before >= 0.05


def test_processor_time_of_a_server_elsewhere_is_not_available(proxy: Proxy) -> None:
    """The relay is here, and pids of the server's are pids here too: only the port tells."""
    measured = benchmarked.Server(proxy.dsn)
    assert not measured.local
    assert measured.cpu_seconds() is None
    assert measured.data_directory is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(server: Server, empty_dsn: str, number: signal.Signals) -> None:
    command = subprocess.Popen(
        _command("latency", empty_dsn), env=_environment(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    left: list[Process] = []
    try:
        eventually(
            lambda: "pgsched listen" in {each.application_name for each in server.backends(empty_dsn)}, timeout=30
        )
        below = descendants(command.pid)
        assert server.value(SCHEMAS, dsn=empty_dsn) == 1
        command.send_signal(number)
        command.communicate(timeout=30)
        left = [each for each in below if not gone(each.pid)]
    finally:
        command.kill()
        command.wait()
        for each in left:
            os.kill(each.pid, signal.SIGKILL)
    assert command.returncode == 128 + number
    assert len(below) >= 4, "a supervisor, a forkserver and two workers"
    assert left == []
    assert server.value(SCHEMAS, dsn=empty_dsn) == 0
    assert server.backends(empty_dsn) == []


def _command(scenario: str, dsn: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", scenario, "--dsn", dsn]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
