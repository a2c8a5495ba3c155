"""A database that goes away, comes back, lies about having answered, or turns read-only; and what that may not cost."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests.audit import Audit
from tests.command import Command
from tests.history import History
from tests.proxy import Proxy
from tests.support import Server, database_of, eventually
from tests.system.conftest import CommandLine
from tests.system.gate import CLAIM, END, REAP, RETRY, Gate, Way
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
ALONE = ("--processes", "1", "--lease", "100", "--reap-interval", "100", "--poll-interval", "100")
"""A supervisor that says nothing to the database of its own accord, but for a sample every five seconds."""
WORK, UPKEEP = "pgsched work", "pgsched upkeep"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


@pytest.fixture
def history(server: Server, dsn: str) -> History:
    return History(server, dsn)


def through(proxy: Proxy) -> dict[str, str]:
    return {"PGSCHED_DSN": proxy.dsn}


def warnings(command: Command) -> list[str]:
    return re.findall(r"^\S+ (?:WARNING|ERROR) (.*)$", command.err, re.MULTILINE)


def strike_who_waits(server: Server, dsn: str, name: str) -> None:
    """End the one session that waits for a lock; of a pooler's sessions, others may still have its name."""
    [waiting] = [backend for backend in server.backends(dsn) if backend.wait_event_type == "Lock"]
    assert waiting.application_name == name
    assert server.value("SELECT pg_terminate_backend(%s)", waiting.pid)


def stops(command: Command) -> None:
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    assert "Traceback" not in command.err, command


@pytest.mark.parametrize(
    ("task_type", "status", "retry_count"), [("nap", "completed", 0), ("refuse_for_long", "queued", 1)]
)
def test_a_settle_whose_reply_is_lost_is_neither_lost_nor_fenced(
    task_type: str,
    status: str,
    retry_count: int,
    proxy: Proxy,
    rows: Rows,
    history: History,
    pgsched_cli: CommandLine,
    audit: Audit,
    server: Server,
    dsn: str,
) -> None:
    gate = Gate(server, dsn, END if status == "completed" else RETRY)
    [task_id] = rows.add(task_type)
    with gate.closed():
        command = pgsched_cli("run", APP, *ALONE, environment=through(proxy))
        gate.wait_for_arrival()
        proxy.swallow(under_way=True, only=WORK)
    command.wait_for("database_lost")
    command.wait_for("database_back")
    stops(command)
    assert rows.row(task_id)[:2] == (status, retry_count)
    assert len(rows.failures(task_id)) == retry_count
    assert audit.executions() == {task_id: 1}
    assert list(history.settles().values()) == [1]
    assert "fenced" not in command.err


# A pooler that loses its client may end the session before the commit.
@pytest.mark.unpooled
def test_rows_of_a_claim_whose_reply_is_lost_come_back_as_strays(
    proxy: Proxy,
    rows: Rows,
    history: History,
    pgsched_cli: CommandLine,
    audit: Audit,
    server: Server,
    dsn: str,
    tmp_path: Path,
) -> None:
    gate = Gate(server, dsn, CLAIM)
    options = ("--processes", "2", "--reap-interval", "1")
    door = tmp_path / "door"
    rows.add("hold", {"until": str(door)}, count=2)
    command = pgsched_cli("run", APP, *options, environment=through(proxy))
    # A worker that is still on its way up would be left out of the claim.
    eventually(lambda: len(audit.entries()) == 2, "both workers are up")
    door.touch()
    rows.all_ended()
    with gate.closed():
        ids = rows.add("nap", count=2)
        gate.wait_for_arrival()
        # A reap may be under way too, and its reply comes first.
        proxy.swallow(under_way=True, only=WORK)
    command.wait_for("database_lost")
    rows.all_ended()
    stops(command)
    executions, claims = audit.executions(), history.claims()
    assert {task_id: (executions[task_id], claims[task_id]) for task_id in ids} == dict.fromkeys(ids, (1, 2))
    assert {rows.row(task_id)[:2] for task_id in ids} == {("completed", 0)}


@pytest.mark.parametrize(
    ("way", "task_type", "status"),
    [(END, "nap", "completed"), (END, "refuse_for_long", "failed"), (RETRY, "refuse_for_long", "queued")],
)
def test_f41_a_write_whose_session_is_terminated_is_done_over_another(
    way: Way,
    task_type: str,
    status: str,
    server: Server,
    dsn: str,
    rows: Rows,
    history: History,
    pgsched_cli: CommandLine,
    audit: Audit,
) -> None:
    """F41: of a success, a last failure, and a failure that is tried again."""
    gate = Gate(server, dsn, way)
    command = pgsched_cli("run", APP, *ALONE)
    with gate.closed():
        [task_id] = rows.add(task_type, max_retries=3 if status == "queued" else 0)
        gate.wait_for_arrival()
        strike_who_waits(server, dsn, WORK)
    eventually(lambda: rows.row(task_id).status == status, "the write was done again")
    stops(command)
    assert audit.executions() == {task_id: 1}
    assert list(history.settles().values()) == [1]
    assert len(rows.failures(task_id)) == (task_type != "nap")


def test_f37_sessions_terminated_all_the_time_repeat_no_task(
    server: Server, dsn: str, rows: Rows, history: History, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F37: under short tasks, and then while idle."""
    ids = rows.add("nap", {"seconds": 0.005}, count=300)
    command = pgsched_cli("run", APP, "--processes", "2", "--reap-interval", "0.5")
    command.wait_for("registered")
    struck, struck_at = 0, time.monotonic()

    def all_ended() -> bool:
        nonlocal struck, struck_at
        if time.monotonic() - struck_at > 0.2:
            struck += server.terminate(dsn, "pgsched %")
            struck_at = time.monotonic()
        return rows.count("status = 'completed'") == len(ids)

    eventually(all_ended, "every task is completed", timeout=60, every=0.02)
    assert struck > 5, "hardly a session was hit"
    server.terminate(dsn, "pgsched %")
    [last] = rows.add("nap")
    eventually(lambda: rows.row(last).status == "completed", "it works on after a strike while idle")
    stops(command)
    assert audit.executions() == dict.fromkeys([*ids, last], 1)
    assert rows.count("retry_count <> 0") == 0
    assert command.err.count(" registered ") == 1, command
    assert "fenced" not in command.err
    assert len(warnings(command)) < 30, command


# A pooler keeps its own sessions to the server that has turned read-only, until it is told otherwise.
@pytest.mark.unpooled
def test_f36_a_server_that_has_turned_read_only_is_left_for_the_writable_one(
    server: Server, dsn: str, rows: Rows, history: History, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F36: the sessions on it answer every question, and are dropped all the same."""
    database = database_of(dsn)
    door = tmp_path / "door"
    [task_id] = rows.add("tick", {"until": str(door)})
    command = pgsched_cli("run", APP, "--processes", "1", "--lease", "60", "--reap-interval", "0.5")
    eventually(lambda: rows.row(task_id).status == "processing", "the task runs")
    server.sql(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    server.terminate(dsn, "pgsched %")
    door.touch()
    later = time.monotonic() + 2.0
    eventually(lambda: time.monotonic() > later)
    assert rows.row(task_id).status == "processing", "the task has ended, and that could be written"
    server.sql(f'ALTER DATABASE "{database}" RESET default_transaction_read_only')
    eventually(lambda: rows.row(task_id).status == "completed", "it writes again")
    stops(command)
    assert history.claims() == {task_id: 1}
    assert command.err.count(" registered ") == 1, command
    assert len(warnings(command)) <= 4, command


@pytest.mark.unpooled
def test_f40_a_listener_whose_session_is_terminated_listens_again(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    """F40: with a poll interval so long that only a hint can bring the task in time."""
    command = pgsched_cli("run", APP, *ALONE)

    def listeners() -> list[int]:
        return [found.pid for found in server.backends(dsn) if found.application_name == "pgsched listen"]

    [first] = eventually(listeners, "it listens")
    assert server.terminate(dsn, "pgsched listen") == 1
    eventually(lambda: [pid for pid in listeners() if pid != first], "it listens again")
    [task_id] = rows.add("tick")
    eventually(lambda: rows.row(task_id).status == "completed", "the hint was heard")
    stops(command)


@pytest.mark.unpooled
def test_a_limit_on_idle_sessions_ends_none_that_waits_for_work(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine
) -> None:
    server.sql(f'ALTER DATABASE "{database_of(dsn)}" SET idle_session_timeout = 500')
    command = pgsched_cli("run", APP, *ALONE)
    before = eventually(lambda: found if len(found := server.backends(dsn)) == 4 else [], "it has all its connections")
    until = time.monotonic() + 3
    eventually(lambda: time.monotonic() > until)
    assert [found.pid for found in server.backends(dsn)] == [found.pid for found in before]
    [task_id] = rows.add("tick")
    eventually(lambda: rows.row(task_id).status == "completed", "the hint was heard")
    assert not warnings(command)
    stops(command)


def test_f49_no_session_is_in_a_transaction_while_tasks_run(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F49: under limits that would end such a session, or a long statement."""
    database = database_of(dsn)
    server.sql(f'ALTER DATABASE "{database}" SET idle_in_transaction_session_timeout = 1500')
    server.sql(f'ALTER DATABASE "{database}" SET statement_timeout = 2500')
    rows.add("nap", {"seconds": 3.0}, count=2)
    command = pgsched_cli("run", APP, "--processes", "2", "--reap-interval", "0.3", "--poll-interval", "0.3")
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    looks, since = 0, 0.0

    def all_ended() -> bool:
        nonlocal looks, since
        looks += 1
        idle = [b for b in server.backends(dsn) if b.state.startswith("idle in transaction")]
        since = (since or time.monotonic()) if idle else 0.0
        assert not since or time.monotonic() - since < 1.0, idle
        return rows.count("status = 'completed'") == 2

    eventually(all_ended, "both tasks are completed", every=0.03)
    assert looks > 5
    stops(command)
    assert not warnings(command), command


def test_f62_the_reaper_needs_no_free_slot_and_survives_three_cuts_in_a_row(
    server: Server, dsn: str, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F62."""
    gate = Gate(server, dsn, REAP)
    [long] = rows.add("nap", {"seconds": 60.0}, priority=1)
    busy = pgsched_cli("run", APP, "--processes", "1", "--reap-interval", "0.3", "--drain-timeout", "0")
    eventually(lambda: audit.executions() == {long: 1}, "its only slot is taken")
    [task_id] = rows.add("nap", {"seconds": 60.0})
    dying = pgsched_cli("run", APP, "--processes", "1", "--lease", "60")
    eventually(lambda: task_id in audit.executions(), "the other one runs the other task")
    with gate.closed():
        dying.signal(signal.SIGKILL)
        for _ in range(3):
            gate.wait_for_arrival()
            strike_who_waits(server, dsn, UPKEEP)
            eventually(lambda: not server.waits_for_lock(dsn), "the session is gone")
        gate.wait_for_arrival()
    eventually(lambda: rows.row(task_id)[:2] == ("queued", 1), "the task was reaped")
    assert rows.row(long).status == "processing"
    [failure] = rows.failures(task_id)
    assert failure.outcome == "lost"
    stops(busy)


def test_an_attempt_counts_although_the_reply_of_its_reap_is_lost(
    proxy: Proxy,
    rows: Rows,
    history: History,
    pgsched_cli: CommandLine,
    audit: Audit,
    server: Server,
    dsn: str,
) -> None:
    gate = Gate(server, dsn, REAP)
    dying = pgsched_cli("run", APP, "--processes", "1")
    [task_id] = rows.add("nap", {"seconds": 60.0}, max_retries=0)
    eventually(lambda: task_id in audit.executions(), "the task runs")
    other = pgsched_cli("run", APP, "--processes", "1", "--reap-interval", "0.5", environment=through(proxy))
    other.wait_for("registered")
    with gate.closed():
        dying.signal(signal.SIGKILL)
        gate.wait_for_arrival()
        proxy.swallow(under_way=True, only=UPKEEP)
    other.wait_for("database_lost")
    eventually(lambda: rows.row(task_id).status in ("failed", "completed", "queued"), "it is settled")
    eventually(lambda: rows.row(task_id).status == "failed", "its only attempt was the first")
    stops(other)
    assert audit.executions() == {task_id: 1}
    assert [failure.outcome for failure in rows.failures(task_id)] == ["lost"]
    assert list(history.settles().values()) == [1]


def test_f86_an_outage_of_any_kind_is_told_in_a_few_lines(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F86: refused, silent, full and starting up, one after the other; the task that runs meanwhile is run once."""
    [running] = rows.add("nap", {"seconds": 1.0})
    options = ("--processes", "2", "--lease", "100", "--db-timeout", "0.5", "--reap-interval", "0.5")
    command = pgsched_cli("run", APP, *options, environment=through(proxy))
    eventually(lambda: len(audit.entries()) == 1, "the task runs")
    before = proxy.accepted
    began = time.monotonic()

    def fall_silent() -> None:
        proxy.pass_on()
        proxy.silence()

    for fault in (
        proxy.refuse,
        fall_silent,
        lambda: proxy.reject("53300", "sorry, too many clients already"),
        lambda: proxy.reject("57P03", "the database system is starting up"),
    ):
        fault()
        until = time.monotonic() + 2.4
        eventually(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
    seconds = time.monotonic() - began
    assert (proxy.accepted - before) / seconds < 10, "it hammers the server"
    proxy.pass_on()
    command.wait_for("database_back")
    [later] = rows.add("nap")
    rows.all_ended()
    assert audit.executions() == {running: 1, later: 1}
    # At the stop it finds out that its lease's connection, unused since, is dead too.
    told = warnings(command)
    stops(command)
    assert len(told) < seconds, command
    assert sum("database_lost" in line for line in told) == 1, command
    assert "not_deregistered" not in command.err
    [back] = [line for line in told if "database_back" in line]
    assert float(re.search(r"seconds=([\d.]+)", back)[1]) > seconds / 2  # type: ignore[index]


def test_a_supervisor_that_stops_waits_for_a_server_that_restarts(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, audit: Audit, tmp_path: Path
) -> None:
    """What has ended while nobody listens is written when somebody does, and not run again."""
    door = tmp_path / "door"
    tasks = rows.add("hold", {"until": str(door)}, count=2)
    command = pgsched_cli("run", APP, "--processes", "2", environment=through(proxy))
    eventually(lambda: len(audit.entries()) == 2, "the tasks run")
    command.signal(signal.SIGTERM)
    command.wait_for("draining")
    proxy.refuse()
    door.touch()
    command.wait_for("state=stopping")
    command.wait_for("database_lost")
    proxy.pass_on()
    assert command.wait().code == 0, command
    assert {rows.row(task).status for task in tasks} == {"completed"}
    assert "not_settled" not in command.err


def test_what_was_written_and_is_undone_is_run_again(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, audit: Audit, server: Server, dsn: str
) -> None:
    """As by a failover to a standby that lacked the last commits: the row is ours again, and we had let it go. That is
    no death, however long the task had run."""
    [task_id] = rows.add("nap", max_retries=0)
    # Without LISTEN it is the next look for tasks that finds the connection dead.
    # The reaper looks soon after the failure, however seldom otherwise.
    options = (*ALONE, "--poll-interval", "1")
    command = pgsched_cli("run", APP, *options, environment=through(proxy))
    rows.all_ended()
    # Whose claim says that the first one's settle was answered: else it would be written again.
    [other] = rows.add("nap")
    rows.all_ended()
    proxy.refuse()
    command.wait_for("database_lost")
    server.sql(
        "UPDATE scheduled_tasks SET status = 'processing', started_at = now() - interval '61 s', updated_at = now(),"
        " finished_at = NULL, claimed_by = (SELECT id FROM pgsched_supervisors) WHERE id = %s",
        task_id,
        dsn=dsn,
    )
    proxy.pass_on()
    command.wait_for("database_back")
    rows.all_ended()
    stops(command)
    assert audit.executions() == {task_id: 2, other: 1}
    assert (rows.row(task_id).status, rows.row(task_id).retry_count) == ("completed", 0)
