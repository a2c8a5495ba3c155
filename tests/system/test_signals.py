"""Signals as people and machines send them: from a terminal, twice, too early, to process 1, and the unheard one."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.audit import Audit
from tests.command import Command
from tests.proxy import Proxy
from tests.support import Server, descendants, eventually, gone, process, processes
from tests.system.conftest import CommandLine
from tests.system.names import NameServer
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
ON_A_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Makes the standard input the controlling terminal, and its reader the foreground."""
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
CTRL_C = b"\x03"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def nothing_left(command: Command) -> None:
    eventually(lambda: not command.processes(), "no process is left over")


def given_back(rows: Rows, ids: list[int]) -> None:
    """The rows are queued again, and it cost them nothing."""
    assert {rows.row(task_id)[:3] for task_id in ids} == {("queued", 0, None)}
    assert rows.count("claimed_by IS NOT NULL") == 0


@pytest.mark.parametrize("presses", [1, 2])
def test_f29_ctrl_c(presses: int, rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    """F29: once, running tasks finish; twice, they are given back."""
    ids = rows.add("nap", {"seconds": 1.0 if presses == 1 else 60.0}, count=2)
    keyboard, terminal = pty.openpty()
    try:
        command = pgsched_cli("run", APP, "--processes", "2", wrapper=ON_A_TERMINAL, stdin=terminal)
        eventually(lambda: len(audit.entries()) == 2, "both tasks run")
        os.write(keyboard, CTRL_C)
        command.wait_for("state=draining")
        if presses == 2:
            os.write(keyboard, CTRL_C)
        ended = command.wait()
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert "KeyboardInterrupt" not in ended.err, command
    assert "Traceback" not in ended.err, command
    assert ended.err.count("state=draining") == 1
    nothing_left(command)
    if presses == 1:
        assert ended.code == 0
        assert {rows.row(task_id).status for task_id in ids} == {"completed"}
    else:
        assert ended.code == 7
        given_back(rows, ids)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_f30_a_second_signal_gives_the_rows_back_at_once(
    second: signal.Signals, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F30."""
    ids = rows.add("nap", {"seconds": 60.0}, count=2)
    # Only the signal can end it before the tasks are through.
    command = pgsched_cli("run", APP, "--processes", "2", "--drain-timeout", "100")
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    command.signal(signal.SIGTERM)
    command.wait_for("state=draining")
    command.signal(second)
    assert command.wait().code == 7, command
    nothing_left(command)
    given_back(rows, ids)
    assert not any(rows.failures(task_id) for task_id in ids)
    assert "Traceback" not in command.err


def test_f30_a_second_signal_does_not_wait_for_a_silent_database(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F30: what cannot be given back is left to the lease."""
    ids = rows.add("nap", {"seconds": 60.0}, count=2)
    # Only the signal can end it before each of them.
    options = ("--processes", "2", "--db-timeout", "60", "--lease", "100", "--drain-timeout", "100")
    command = pgsched_cli("run", APP, *options, environment={"PGSCHED_DSN": proxy.dsn})
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    proxy.silence()
    command.signal(signal.SIGTERM)
    command.wait_for("state=draining")
    command.signal(signal.SIGTERM)
    assert command.wait().code == 7, command
    nothing_left(command)
    assert "Traceback" not in command.err
    assert {rows.row(task_id)[:2] for task_id in ids} == {("processing", 0)}


def test_f30_a_signal_does_not_wait_for_a_silent_name_server(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F30: nor does the end of the process, for a thread that waits for it."""
    names = NameServer(pgsched_cli)
    [task_id] = rows.add("nap", {"seconds": 60.0})
    options = ("--processes", "1", "--lease", "100", "--drain-timeout", "100")
    command = pgsched_cli("run", APP, *options, environment={"PGSCHED_DSN": names.dsn(proxy)})
    eventually(lambda: len(audit.entries()) == 1, "the task runs")
    names.silence()
    proxy.cut()
    names.wait_for_question()
    command.signal(signal.SIGTERM)
    command.wait_for("state=draining")
    command.signal(signal.SIGTERM)
    assert command.wait(15).code == 7, command
    nothing_left(command)
    assert "Traceback" not in command.err
    assert rows.row(task_id)[:2] == ("processing", 0)


SLOW_IMPORT = """
import time
from pathlib import Path
from pgsched import App

app = App()
Path("importing").touch()
time.sleep(100)
"""


def test_f30_five_signals_before_the_pool_is_up(server: Server, dsn: str, pgsched_cli: CommandLine) -> None:
    """F30: while the user's module is being imported."""
    pgsched_cli.module("slow_import", SLOW_IMPORT)
    command = pgsched_cli("run", "slow_import:app", "--processes", "2")
    eventually((pgsched_cli.directory / "importing").exists, "the module is being imported")
    for _ in range(5):
        command.signal(signal.SIGTERM)
    ended = command.wait()
    assert ended.code in (0, 7), command
    assert "Traceback" not in ended.err, command
    nothing_left(command)
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_f30_a_signal_at_any_time_of_the_start_is_no_traceback(
    number: signal.Signals, pgsched_cli: CommandLine
) -> None:
    """F30: before the loop is there to hear it, too."""
    commands = []
    for step in range(5):
        command = pgsched_cli("run", APP, "--processes", "1")
        commands.append(command)
        at = time.monotonic() + step * 0.15
        eventually(lambda at=at: time.monotonic() >= at)  # type: ignore[misc]
        command.signal(number)
    for command in commands:
        ended = command.wait()
        if number == signal.SIGINT and " INFO " not in ended.err:
            # Python itself answers an interrupt that comes before the first line of ours, in its own words.
            assert ended.code != 0, command
            continue
        assert ended.code in (0, -number, 130), command
        assert "internal error" not in ended.err, command
        assert "Traceback" not in ended.err, command
        nothing_left(command)


ORPHANS = """
import os, time
from pgsched import App
from tests.audit import entry

app = App()

@app.task
def rest() -> None:
    with entry():
        time.sleep(1.0)

@app.task
def leave_an_orphan() -> None:
    reading, writing = os.pipe()
    if not os.fork():
        if not os.fork():
            os.read(reading, 1)
        os._exit(0)
    os.wait()
    os.close(writing)
"""


def may_make_namespaces() -> bool:
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_make_namespaces(), reason="unshare may not make a pid namespace here")
def test_f35_as_process_1_it_drains_and_collects_what_is_orphaned(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F35."""
    pgsched_cli.module("orphans", ORPHANS)
    rows.add("leave_an_orphan", count=20)
    command = pgsched_cli("run", "orphans:app", "--processes", "2", wrapper=NAMESPACE)
    rows.all_ended()
    [supervisor] = [found.pid for found in descendants(command.pid) if found.parent == command.pid]
    eventually(lambda: not zombies_below(supervisor), "the orphans are collected")
    rows.add("rest", count=2)
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    os.kill(supervisor, signal.SIGTERM)
    assert command.wait().code == 0, command
    assert rows.count("status = 'completed'") == 22
    nothing_left(command)


@pytest.mark.skipif(not may_make_namespaces(), reason="unshare may not make a pid namespace here")
def test_f35_as_process_1_it_hears_the_signal_while_it_waits_for_a_database(
    proxy: Proxy, pgsched_cli: CommandLine
) -> None:
    """F35: what process 1 has no handler for, the kernel keeps from it."""
    proxy.refuse()
    options = ("--wait-for-database", "100s")
    command = pgsched_cli("run", APP, *options, environment={"PGSCHED_DSN": proxy.dsn}, wrapper=NAMESPACE)
    command.wait_for("waiting 100 s")
    [supervisor] = [found.pid for found in descendants(command.pid) if found.parent == command.pid]
    os.kill(supervisor, signal.SIGTERM)
    assert command.wait(15).code == 0, command
    assert "Traceback" not in command.err, command


def zombies_below(pid: int) -> list[int]:
    return [found.pid for found in processes() if found.parent == pid and found.dead]


def test_f10_f61_a_killed_supervisor_leaves_nothing_and_its_successor_takes_over_at_once(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    """F10, F61: the lease is so long that only the successor's look at its neighbours can be that quick."""
    ids = rows.add("nap", {"seconds": 60.0}, count=2)
    options = ("--processes", "3", "--lease", "60", "--reap-interval", "60")
    first = pgsched_cli("run", APP, *options)
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    below = [found.pid for found in first.processes()]
    assert len(below) > 4, "supervisor, forkserver and three workers"
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: all(gone(pid) for pid in below), "workers and forkserver are gone")
    assert process(first.pid) is not None
    second = pgsched_cli("run", APP, *options)
    second.wait_for("registered")
    eventually(lambda: len(audit.entries()) == 4, "the tasks run again")
    assert set(audit.executions().values()) == {2}
    assert {rows.row(task_id).retry_count for task_id in ids} == {1}
    second.signal(signal.SIGTERM)
    second.wait_for("state=draining")
    second.signal(signal.SIGTERM)
    assert second.wait().code == 7, second
