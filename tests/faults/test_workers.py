"""What the death of workers, or large payloads and results, must not cost the service around them."""

import os
import signal

import pytest

from tests.audit import Audit
from tests.history import History
from tests.support import FULL, Server, eventually, gone
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
LARGE = """
from pgsched import App

app = App()

@app.task
def text(size: int, given: str = "") -> str:
    return "x" * size
"""
SIZE, PAYLOAD = 1_000_000, 15 * 1024 * 1024
LARGE_TASKS, LEASE = (60, 2.0) if FULL else (8, 8.0)


def test_f20_deaths_of_workers_leave_the_sessions_alone(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    """F20: whatever a worker inherits or does at its end, it is no session of the supervisor's."""
    command = pgsched_cli("run", APP, "--processes", "2", "--poll-interval", "0.3")
    rows.add("tick", count=50)
    rows.all_ended()

    def sessions() -> set[int]:
        return {found.pid for found in server.backends(dsn) if found.application_name.startswith("pgsched ")}

    def workers() -> list[int]:
        return [found.pid for found in command.processes() if found.name.startswith("pgsched-slot")]

    before = sessions()
    for _ in range(20):
        victim = eventually(workers, "there are workers")[0]
        rows.add("tick", count=5)
        os.kill(victim, signal.SIGKILL)
        eventually(lambda victim=victim: gone(victim))  # type: ignore[misc]
    rows.all_ended()
    assert sessions() == before
    assert "database_lost" not in command.err


@pytest.mark.parametrize("done", [1, 3])
def test_f07_a_drain_takes_large_results_with_it(
    done: int, rows: Rows, pgsched_cli: CommandLine, server: Server, dsn: str
) -> None:
    """F07: each worker is replaced after each task, and the signal comes while reports are under way."""
    pgsched_cli.module("large", LARGE)
    ids = rows.add("text", {"size": SIZE}, count=30)
    command = pgsched_cli("run", "large:app", "--processes", "2", "--max-tasks-per-worker", "1")
    eventually(lambda: rows.count("status = 'completed'") >= done, "some are done")
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    eventually(lambda: not command.processes(), "no process is left")
    assert rows.count("status = 'queued' AND retry_count = 0 OR status = 'completed'") == len(ids)
    lengths = server.sql(
        "SELECT DISTINCT length(result #>> '{}') FROM scheduled_tasks WHERE status = 'completed'", dsn=dsn
    )
    assert lengths == [(SIZE,)]


BEATS = """
    CREATE TABLE beats (id bigint, at timestamptz DEFAULT clock_timestamp());
    CREATE FUNCTION note_beat() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO beats (id) VALUES (new.id);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_beat AFTER INSERT OR UPDATE OF lease_until ON pgsched_supervisors
    FOR EACH ROW EXECUTE FUNCTION note_beat();
"""
GAPS = "SELECT id, extract(epoch FROM at - lag(at) OVER (PARTITION BY id ORDER BY at))::float8 FROM beats"


def test_f63_the_largest_payloads_and_results_keep_no_lease_from_being_renewed(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    """F63: the supervisor reads and writes them in the process that renews."""
    server.sql(BEATS, dsn=dsn)
    history = History(server, dsn)
    pgsched_cli.module("large", LARGE)
    insert = (
        "INSERT INTO scheduled_tasks (task_type, payload, run_at)"
        " SELECT 'text', jsonb_build_object('size', %s::integer, 'given', repeat('x', %s)), now()"
        " FROM generate_series(1, %s) RETURNING id"
    )
    ids = [number for (number,) in server.sql(insert, SIZE, PAYLOAD, LARGE_TASKS, dsn=dsn)]
    command = pgsched_cli("run", "large:app", "--processes", "2", "--lease", f"{LEASE:g}")
    rows.all_ended(timeout=90)
    assert rows.count(f"status = 'completed' AND length(result #>> '{{}}') = {SIZE}") == len(ids)
    assert history.claims() == dict.fromkeys(ids, 1)
    assert "lease_lost" not in command.err
    gaps = server.sql(GAPS, dsn=dsn)
    assert len({supervisor for supervisor, _ in gaps}) == 1
    largest = max(gap for _, gap in gaps if gap is not None)
    print(f"{len(gaps)} renewals, {largest:.2f} s between two at most, of a lease of {LEASE:g} s")
    assert largest < LEASE


def test_f26_a_task_handed_over_and_not_begun_goes_back(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit, server: Server, dsn: str
) -> None:
    """F26: after the hand-over and before the worker has received it: the worker is stopped."""
    command = pgsched_cli("run", APP, "--processes", "1", "--drain-timeout", "0.5")
    command.wait_for("registered")
    [worker] = eventually(lambda: [each for each in command.processes() if each.name.startswith("pgsched-slot")])
    os.kill(worker.pid, signal.SIGSTOP)
    [task_id] = rows.add("nap")
    eventually(lambda: rows.row(task_id).status == "processing", "it is claimed")
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    assert rows.row(task_id)[:3] == ("queued", 0, None)
    assert not audit.executions()
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0
    eventually(lambda: not command.processes(), "no process is left")
