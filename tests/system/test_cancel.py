"""Cancel at every moment of a task's life: what the row says and what the function did agree (F74)."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgsched.store.admin import Changed, Filter, cancel, retry
from tests.audit import Audit
from tests.history import History
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
Cancel = Callable[..., Changed]


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


@pytest.fixture
def cancelling(connect: Callable[..., psycopg.Connection]) -> Cancel:
    """Cancels tasks by their ids, as ``pgsched cancel`` does."""
    connection = connect()
    return lambda *ids: cancel(connection, Filter(ids=ids))


def runs(audit: Audit, task_id: int) -> bool:
    return any(entry.ended is None for entry in audit.entries(task_id))


def test_f74_a_queued_task_never_begins(rows: Rows, cancelling: Cancel, pgsched_cli: CommandLine, audit: Audit) -> None:
    [cancelled, other] = rows.add("nap", count=2)
    assert cancelling(cancelled).ids == [cancelled]
    pgsched_cli("run", APP, "--processes", "1")
    rows.all_ended()
    assert rows.row(cancelled).status == "cancelled"
    assert set(audit.executions()) == {other}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--poll-interval", "60"), id="listening", marks=pytest.mark.unpooled),
        pytest.param(("--poll-only",), id="polling"),
    ],
)
def test_f74_a_running_task_is_stopped(
    rows: Rows, cancelling: Cancel, pgsched_cli: CommandLine, audit: Audit, options: tuple[str, ...]
) -> None:
    [running] = rows.add("nap", {"seconds": 60})
    command = pgsched_cli("run", APP, "--processes", "1", *options)
    eventually(lambda: runs(audit, running), "it runs")
    [behind] = rows.add("nap")
    started = time.monotonic()
    # As a user would do it.
    ended = pgsched_cli.run("cancel", str(running))
    assert (ended.code, ended.out) == (0, "1 task cancelled\n")
    eventually(lambda: rows.row(behind).status == "completed", "its slot is free")
    print(f"stopped after {time.monotonic() - started:.3f} s")
    row = rows.row(running)
    assert (row.status, row.retry_count, row.result, rows.failures(running)) == ("cancelled", 0, None, [])
    assert [entry.ended for entry in audit.entries(running)] == [None]
    assert command.running


def test_f74_a_task_that_is_claimed_and_waits_never_begins(
    server: Server, dsn: str, rows: Rows, cancelling: Cancel, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    note, door = tmp_path / "begun", tmp_path / "door"
    pgsched_cli("run", APP, "--processes", "1")
    # Teaches the supervisor that these are tiny, and may be claimed ahead.
    rows.add("tick", count=300)
    rows.all_ended()
    # In one transaction: once the first one runs for long, nothing more of its type is claimed.
    queued = server.sql(
        "INSERT INTO scheduled_tasks (task_type, payload, run_at)"
        " SELECT 'tick', CASE number WHEN 0 THEN jsonb_build_object('until', %s::text)"
        " ELSE jsonb_build_object('note', %s::text) END, now()"
        " FROM generate_series(0, 50) AS number RETURNING id",
        str(door),
        str(note),
        dsn=dsn,
    )
    first, *waiting = [number for (number,) in queued]
    held = eventually(lambda: [number for number in waiting if rows.row(number).status == "processing"], "some wait")
    victim = held[-1]
    assert rows.row(first).status == "processing"
    assert cancelling(victim).ids == [victim]
    # Who hears no hints gives the others back, with it, because they wait behind a long one.
    eventually(lambda: {rows.row(number).status for number in waiting} == {"queued", "cancelled"}, "it has let go")
    door.touch()
    rows.all_ended()
    assert rows.row(victim).status == "cancelled"
    assert rows.row(first).status == "completed"
    assert sorted(map(int, note.read_text().split())) == [number for number in waiting if number != victim]


def test_f74_a_task_that_is_done_stays_done(
    rows: Rows, cancelling: Cancel, pgsched_cli: CommandLine, audit: Audit
) -> None:
    [done] = rows.add("nap")
    pgsched_cli("run", APP, "--processes", "1")
    rows.all_ended()
    changed = cancelling(done)
    assert changed.ids == []
    assert done in changed.left
    assert rows.row(done)[:4] == ("completed", 0, None, "rested")
    assert audit.executions() == {done: 1}


def test_no_execution_has_the_fence_of_another(
    rows: Rows, connect: Callable[..., psycopg.Connection], pgsched_cli: CommandLine, server: Server, dsn: str
) -> None:
    """The attempts begin at 1 again after `pgsched retry`, and what was cancelled may still be running then."""
    [task] = rows.add("introspect")
    pgsched_cli("run", APP, "--processes", "1")
    told = []
    for _ in range(2):
        rows.all_ended()
        told.append(rows.row(task).result)
        server.sql("UPDATE scheduled_tasks SET status = 'failed' WHERE id = %s", task, dsn=dsn)
        assert retry(connect(), Filter(ids=[task])).ids == [task]
    assert [each["attempt"] for each in told] == [1, 1]
    assert told[0]["fence"] < told[1]["fence"]


def test_f74_a_task_that_waits_for_its_retry_is_not_tried_again(
    rows: Rows, cancelling: Cancel, pgsched_cli: CommandLine, audit: Audit, server: Server, dsn: str
) -> None:
    [failing] = rows.add("refuse_for_long")
    pgsched_cli("run", APP, "--processes", "1")
    eventually(lambda: rows.row(failing).retry_count == 1, "it has failed once")
    assert rows.row(failing).status == "queued"
    assert cancelling(failing).ids == [failing]
    # Were it still live, it would be due now.
    server.sql("UPDATE scheduled_tasks SET run_at = now() WHERE id = %s", failing, dsn=dsn)
    rows.add("nap", count=3)
    rows.all_ended()
    assert rows.row(failing).status == "cancelled"
    assert audit.executions()[failing] == 1


def test_f74_cancels_at_random_moments(
    server: Server,
    dsn: str,
    rows: Rows,
    cancelling: Cancel,
    pgsched_cli: CommandLine,
    audit: Audit,
    dice: random.Random,
) -> None:
    history = History(server, dsn)
    ids = rows.add("nap", {"seconds": 0.05}, count=100)
    pgsched_cli("run", APP, "--processes", "2")
    eventually(audit.entries, "they run")
    victims = dice.sample(ids, 60)

    def cancelled_all() -> bool:
        if victims and dice.random() < 0.3:
            cancelling(victims.pop())
        return not victims

    eventually(cancelled_all, "all are cancelled")
    rows.all_ended()
    executions = {entry.task_id: entry for entry in audit.entries()}
    assert max(audit.executions().values()) == 1
    claims = history.claims()
    assert set(executions) <= set(claims), "a task began that was cancelled before anybody had claimed it"
    assert max(claims.values()) == 1
    outcomes = {task_id: rows.row(task_id) for task_id in ids}
    print({status: sum(row.status == status for row in outcomes.values()) for status in ("completed", "cancelled")})
    for task_id, row in outcomes.items():
        assert row.retry_count == 0
        execution = executions.get(task_id)
        if row.status == "completed":
            assert execution is not None
            assert execution.ended is not None
        else:
            assert row.status == "cancelled"
            assert row.result is None
    assert {row.status for row in outcomes.values()} == {"completed", "cancelled"}
