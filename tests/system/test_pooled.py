"""Through PgBouncer in transaction mode: commands and programs find out by themselves, and a supervisor is told.

The rest of this floor is run through it with ``PGSCHED_TEST_POOLED=1``.
"""

import re
import signal
import threading

import pytest

from pgsched import App
from pgsched.store.check import CLAIM_LOCKS
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
WARNING = "warning: the DSN leads to a connection pooler"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def declared(dsn: str) -> App:
    app = App(dsn)

    @app.task
    def one(a: int) -> int:
        return a

    return app


def test_f39_programs_enqueue_through_a_pooler(pooled_dsn: str, rows: Rows) -> None:
    """F39: sessions take turns, so whatever one program prepared, another would meet."""
    apps = [declared(pooled_dsn) for _ in range(4)]

    def enqueue(app: App) -> None:
        for number in range(50):
            app.tasks["one"].enqueue(number)

    threads = [threading.Thread(target=enqueue, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for app in apps:
        app.close()
    assert rows.count("task_type = 'one'") == 200


def test_f39_a_program_prepares_where_there_is_no_pooler(server: Server, dsn: str) -> None:
    """F39: it is twice as fast so."""
    app = declared(dsn)
    for number in range(10):
        app.tasks["one"].enqueue(number)
    connection = app.producer._state.connection
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)
    app.close()


def test_f39_commands_work_through_a_pooler(
    server: Server, dsn: str, pooled_dsn: str, pgsched_cli: CommandLine, rows: Rows
) -> None:
    """F39: and `check` says what is to be told to `run`."""
    through = {"PGSCHED_DSN": pooled_dsn, "PGSCHED_POOLED": "0"}
    for number in range(3):
        ended = pgsched_cli.run("enqueue", "tick", f'{{"seconds": {number}}}', environment=through)
        assert ended.code == 0, ended
    for command in ("status", "tasks", "migrate"):
        assert pgsched_cli.run(command, environment=through).code == 0
    checked = pgsched_cli.run("check", environment=through)
    assert "--pooled" in checked.out + checked.err
    ids = [str(task_id) for (task_id,) in server.sql("SELECT id FROM scheduled_tasks", dsn=dsn)]
    assert pgsched_cli.run("cancel", *ids, environment=through).code == 0
    assert rows.count("status = 'cancelled'") == 3


@pytest.mark.parametrize("told", [True, False])
def test_f39_run_says_in_one_line_that_the_option_is_missing(
    told: bool, pooled_dsn: str, pgsched_cli: CommandLine, rows: Rows
) -> None:
    """F39: a warning only, for a pooler of sessions needs no option."""
    through = {"PGSCHED_DSN": pooled_dsn, "PGSCHED_POOLED": "1" if told else "0"}
    rows.add("tick", count=200)
    command = pgsched_cli("run", APP, "--processes", "2", environment=through)
    if told:
        rows.all_ended()
        command.signal(signal.SIGTERM)
        assert command.wait().code == 0, command
        assert "WARNING" not in command.err, command
    else:
        command.wait_for(WARNING)
        assert re.search("give (--pooled|PGSCHED_POOLED)$", command.err, re.MULTILINE)
        command.signal(signal.SIGTERM)
        command.wait()
    assert command.err.count(WARNING) == (not told), command


def test_f57_locks_end_with_their_transactions(server: Server, dsn: str, pgsched_cli: CommandLine, rows: Rows) -> None:
    """F57."""
    watch_locks({"PGSCHED_DSN": dsn, "PGSCHED_POOLED": "0"}, server, dsn, pgsched_cli, rows)


def test_f57_locks_end_with_their_transactions_in_a_pooler_too(
    pooled_dsn: str, server: Server, dsn: str, pgsched_cli: CommandLine, rows: Rows
) -> None:
    """F57: a lock of a session would stay with the pooler's."""
    watch_locks({"PGSCHED_DSN": pooled_dsn, "PGSCHED_POOLED": "1"}, server, dsn, pgsched_cli, rows)


def watch_locks(environment: dict[str, str], server: Server, dsn: str, pgsched_cli: CommandLine, rows: Rows) -> None:
    """One for each task of a claim under way, and none when its supervisor is gone."""
    command = pgsched_cli("run", APP, "--processes", "2", "--poll-interval", "0.1", environment=environment)
    most = 0

    def through_with_it() -> bool:
        nonlocal most
        most = max(most, server.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
        return not rows.count("status IN ('queued', 'processing')")

    rows.add("tick", count=3000)
    eventually(through_with_it, "all have run", every=0.0)
    assert most <= CLAIM_LOCKS
    eventually(lambda: not server.leftovers(dsn), "no lock while it is idle")
    rows.add("tick", count=3000)
    eventually(lambda: rows.count("status = 'completed'") > 3100, "it is in the middle of it", every=0.0)
    command.signal(signal.SIGKILL)
    command.wait()
    eventually(lambda: not server.leftovers(dsn), "no lock, no transaction")
