"""A running supervisor is changed: its app by SIGHUP, the number of its slots by SIGTTIN and SIGTTOU, under load."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from pgsched import __version__
from tests.audit import Audit
from tests.command import Command
from tests.history import History
from tests.support import Server, descendants, eventually, gone
from tests.system.conftest import CommandLine
from tests.system.gate import CLAIM, Gate
from tests.system.rows import Rows

APP = "tests.system.tasks:app"

VERSION = """
# {filler}
import os
import time
from pathlib import Path
from pgsched import App, Retry
from tests.audit import entry

app = App()


@app.task(retry=Retry(base=0.0, cap=0.0))
def work(seconds: float = 0.0) -> int:
    with entry():
        time.sleep(seconds)
    return {number}


@app.task
def wait_for(path: str) -> int:
    with entry():
        while not Path(path).exists():
            time.sleep(0.005)
    return {number}


@app.task
def only_{number}() -> int:
    with entry():
        return {number}
"""


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


class Deployed:
    """A supervisor with an app that is deployed anew by a file and a signal."""

    def __init__(self, pgsched_cli: CommandLine) -> None:
        self.cli = pgsched_cli
        self.done = pgsched_cli.directory / "done"

    def write(self, number: int, more: str = "") -> None:
        """Put this version in the app's place. Its text differs in length, so that no cached code fits it."""
        self.cli.module("deployed", f"{VERSION.format(number=number, filler='x' * number)}\n{more}\n")

    def start(self, *options: str, processes: int = 2) -> Command:
        command = self.cli("run", "deployed:app", "--processes", str(processes), *options)
        command.wait_for("registered")
        return command


@pytest.fixture
def deployed(pgsched_cli: CommandLine) -> Deployed:
    made = Deployed(pgsched_cli)
    made.write(1)
    return made


def results(rows: Rows, ids: list[int]) -> set[object]:
    return {rows.row(task_id).result for task_id in ids}


def ends(command: Command) -> None:
    command.signal(signal.SIGTERM)
    ended = command.wait(20)
    assert ended.code == 0, command
    assert "\nTraceback" not in ended.err, command
    eventually(lambda: not command.processes(), "no process is left over")


def executed_once(rows: Rows, audit: Audit) -> None:
    """Every task has run once and ended well."""
    assert rows.count("status <> 'completed' OR retry_count <> 0") == 0
    executions = audit.executions()
    assert len(executions) == rows.count("true")
    assert set(executions.values()) == {1}


def forkservers(command: Command) -> list[int]:
    return [found.pid for found in descendants(command.pid) if found.name == "pgsched-fork"]


def forkserver(command: Command) -> int:
    [pid] = forkservers(command)
    return pid


def workers(command: Command) -> list[int]:
    return [found.pid for found in descendants(command.pid) if found.name.startswith("pgsched-slot")]


def test_a_reload_under_load_loses_no_task_and_runs_none_twice(
    deployed: Deployed, rows: Rows, audit: Audit, server: Server, dsn: str
) -> None:
    history = History(server, dsn)
    command = deployed.start(processes=3)
    [long] = rows.add("wait_for", {"path": str(deployed.done)})
    eventually(lambda: len(audit.entries()) == 1, "the long task runs", timeout=20)
    for number in (2, 3):
        before = rows.add("work", {"seconds": 0.005}, count=100)
        eventually(lambda: rows.count("status = 'completed'") > 20, "work is under way", timeout=20)
        deployed.write(number)
        command.signal(signal.SIGHUP)
        command.wait_for("INFO reloaded", after=number - 2)
        [new] = rows.add(f"only_{number}")
        eventually(lambda new=new: rows.row(new).status == "completed", "new code runs", timeout=20)  # type: ignore[misc]
        eventually(lambda: rows.count("status IN ('queued', 'processing')") == 1, "all but the long task have ended")
        assert results(rows, before) <= set(range(1, number + 1))
    assert rows.row(long).status == "processing"
    assert "reload_finished" not in command.err
    deployed.done.touch()
    rows.all_ended()
    assert rows.row(long).result == 1, "it has ended in the code in which it began"
    command.wait_for("reload_finished")
    last = rows.add("work", count=20)
    rows.all_ended()
    assert results(rows, last) == {3}
    executed_once(rows, audit)
    assert set(history.settles().values()) == {1}
    ends(command)


def test_types_that_the_new_app_lacks_are_given_back(deployed: Deployed, rows: Rows, audit: Audit) -> None:
    """What runs ends in the old code, what waits goes back, and the row of the supervisor says what it takes now."""
    command = deployed.start(processes=1)
    [running] = rows.add("wait_for", {"path": str(deployed.done)})
    eventually(lambda: len(audit.entries()) == 1, "the task runs", timeout=20)
    waiting = rows.add("only_1", count=5)
    deployed.write(2)
    command.signal(signal.SIGHUP)
    command.wait_for("INFO reloaded .*added=.*only_2.* removed=.*only_1")
    deployed.done.touch()
    fresh = rows.add("only_2", count=5)
    eventually(lambda: results(rows, fresh) == {2}, "the new type is taken", timeout=20)
    assert rows.row(running)[0] == "completed"
    assert {rows.row(task_id)[:3] for task_id in waiting} == {("queued", 0, None)}
    assert rows.count("status = 'processing'") == 0

    def said() -> bool:
        return "no live supervisor takes tasks of type only_1" in deployed.cli.run("status").out

    eventually(said, "the supervisor's row names the types of the new app", every=0.2)
    deployed.write(1)
    command.signal(signal.SIGHUP)
    eventually(lambda: results(rows, waiting) == {1}, "they are taken again", timeout=20)
    executed_once(rows, audit)
    ends(command)


def test_a_claim_under_way_at_the_reload_brings_nothing_that_the_new_app_lacks(
    deployed: Deployed, rows: Rows, audit: Audit, server: Server, dsn: str
) -> None:
    gate = Gate(server, dsn, CLAIM)
    command = deployed.start()
    with gate.closed():
        ids = rows.add("only_1", count=3)
        gate.wait_for_arrival()
        imported = deployed.cli.directory / "imported"
        deployed.write(2, f"Path({str(imported)!r}).touch()")
        command.signal(signal.SIGHUP)
        eventually(imported.exists, "the new app is there", timeout=20)
        with pytest.raises(AssertionError, match="still runs"):
            command.wait_for("INFO reloaded", timeout=1)
    command.wait_for("INFO reloaded")
    eventually(lambda: not rows.count("status = 'processing'"), "nothing is held")
    # What an old worker had begun before the swap has ended there.
    assert {rows.row(task_id)[:3] for task_id in ids} <= {("queued", 0, None), ("completed", 0, None)}
    assert not any(rows.failures(task_id) for task_id in ids)
    assert len(audit.executions()) == rows.count("status = 'completed'")
    ends(command)


def test_an_app_that_cannot_be_imported_leaves_the_old_one_in_service(
    deployed: Deployed, rows: Rows, audit: Audit
) -> None:
    command = deployed.start()
    before = sorted(workers(command))
    deployed.cli.module("deployed", "raise ValueError('broken by a deploy')")
    command.signal(signal.SIGHUP)
    line = command.wait_for("ERROR reload_failed .*")[0]
    assert "ValueError: broken by a deploy" in line
    ids = rows.add("work", count=20)
    rows.all_ended()
    assert results(rows, ids) == {1}
    assert sorted(workers(command)) == before
    deployed.write(2)
    command.signal(signal.SIGHUP)
    command.wait_for("INFO reloaded")
    command.wait_for("reload_finished")
    ids = rows.add("work", count=20)
    rows.all_ended()
    assert results(rows, ids) == {2}
    assert command.err.count("reload_failed") == 1
    executed_once(rows, audit)
    ends(command)


def test_an_app_is_not_reloaded_into_another_version_of_pgsched(deployed: Deployed, rows: Rows, audit: Audit) -> None:
    """It was installed meanwhile: workers of its code would not understand this supervisor."""
    command = deployed.start()
    before = sorted(workers(command))
    installed = deployed.cli.directory / "pgsched-99.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pgsched\nVersion: 99.0\n")
    deployed.write(2)
    command.signal(signal.SIGHUP)
    line = command.wait_for("ERROR reload_failed .*")[0]
    refusal = f'error="pgsched 99.0 is installed now, and this supervisor is {__version__}: restart it"'
    assert line.endswith(refusal)
    ids = rows.add("work", count=20)
    rows.all_ended()
    assert results(rows, ids) == {1}
    assert sorted(workers(command)) == before
    # Nor are workers made anew by a forkserver of that version, should the old one die.
    os.kill(forkserver(command), signal.SIGKILL)
    command.wait_for(f"restart_delayed .*{re.escape(refusal)}")
    (installed / "METADATA").unlink()
    installed.rmdir()
    eventually(lambda: len(forkservers(command)) == 1, "a forkserver of our version")
    command.signal(signal.SIGHUP)
    command.wait_for("reload_finished")
    executed_once(rows, audit)
    ends(command)


def test_ten_hangups_at_once_are_two_reloads_at_most(deployed: Deployed, rows: Rows, audit: Audit) -> None:
    command = deployed.start()
    rows.add("work", {"seconds": 0.01}, count=200)
    deployed.write(2)
    for _ in range(10):
        command.signal(signal.SIGHUP)
    command.wait_for("INFO reloaded")
    rows.all_ended()
    command.wait_for("reload_finished")
    eventually(lambda: command.err.count("INFO reloaded") == command.err.count("INFO reloading"), "all are over")
    assert command.err.count("INFO reloading") <= 2
    ids = rows.add("work", count=20)
    rows.all_ended()
    assert results(rows, ids) == {2}
    executed_once(rows, audit)
    eventually(lambda: len(workers(command)) == 2)
    assert forkserver(command)
    ends(command)


@pytest.mark.parametrize("victim", ["worker", "old forkserver", "new forkserver"])
def test_a_kill_in_the_middle_of_a_reload(victim: str, deployed: Deployed, rows: Rows, audit: Audit) -> None:
    command = deployed.start(processes=2)
    [long] = rows.add("wait_for", {"path": str(deployed.done)})
    eventually(lambda: len(audit.entries()) == 1, "the task runs", timeout=20)
    importing = deployed.cli.directory / "importing"
    pause = f"Path({str(importing)!r}).touch()\nwhile not Path('{importing} on').exists():\n    time.sleep(0.01)"
    deployed.write(2, pause)
    before = forkserver(command)
    command.signal(signal.SIGHUP)
    eventually(importing.exists, "the new app is being imported", timeout=20)
    servers = forkservers(command)
    if victim == "worker":
        busy = audit.entries()[0].pid
        os.kill(next(pid for pid in workers(command) if pid != busy), signal.SIGKILL)
    else:
        os.kill(before if victim == "old forkserver" else next(pid for pid in servers if pid != before), signal.SIGKILL)
    if victim == "new forkserver":
        command.wait_for("ERROR reload_failed .*killed by signal 9")
    Path(f"{importing} on").touch()
    if victim != "new forkserver":
        command.wait_for("INFO reloaded", timeout=30)
    ids = rows.add("work", count=20)
    eventually(lambda: rows.count("status = 'completed'") == 20, "the others work", timeout=30)
    assert results(rows, ids) == ({1} if victim == "new forkserver" else {2})
    deployed.done.touch()
    rows.all_ended()
    assert rows.row(long).result == 1
    executed_once(rows, audit)
    ends(command)
    assert gone(before)


def test_a_supervisor_that_is_killed_while_it_reloads_leaves_nothing(
    deployed: Deployed, rows: Rows, audit: Audit
) -> None:
    options = ("--lease", "60", "--reap-interval", "60")
    command = deployed.start(*options)
    [long] = rows.add("wait_for", {"path": str(deployed.done)})
    eventually(lambda: len(audit.entries()) == 1, "the task runs", timeout=20)
    deployed.write(2)
    command.signal(signal.SIGHUP)
    # The worker with the task has the old app, and its forkserver is gone.
    command.wait_for("INFO reloaded")
    below = [found.pid for found in command.processes()]
    os.kill(command.pid, signal.SIGKILL)
    eventually(lambda: all(gone(pid) for pid in below), "everything below it is gone")
    deployed.done.touch()
    second = deployed.start(*options)
    rows.all_ended()
    assert rows.row(long)[:2] == ("completed", 1)
    assert rows.row(long).result == 2
    assert audit.executions() == {long: 2}
    ends(second)


def test_a_stop_while_the_app_is_being_imported(deployed: Deployed, rows: Rows) -> None:
    command = deployed.start()
    importing = deployed.cli.directory / "importing"
    deployed.cli.module(
        "deployed", f"import time\nfrom pathlib import Path\nPath({str(importing)!r}).touch()\ntime.sleep(600)"
    )
    command.signal(signal.SIGHUP)
    eventually(importing.exists, "the new app is being imported", timeout=20)
    ends(command)
    assert "reload_failed" not in command.err


def test_slots_come_and_go_by_signals_under_load(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    command = pgsched_cli("run", APP, "--processes", "2")
    command.wait_for("registered")
    rows.add("nap", {"seconds": 0.02}, count=200)
    eventually(audit.entries, "work is under way", timeout=20)
    for number in (3, 4):
        command.signal(signal.SIGTTIN)
        command.wait_for(f"resized processes={number}")
    eventually(lambda: len(workers(command)) == 4)
    for number in (3, 2, 1):
        command.signal(signal.SIGTTOU)
        command.wait_for(f"resized processes={number} before={number + 1}")
    eventually(lambda: len(workers(command)) == 1, timeout=20)
    command.signal(signal.SIGTTOU)
    rows.all_ended(timeout=40)
    assert len(workers(command)) == 1, "there is always one"
    assert "processes=0" not in command.err
    executed_once(rows, audit)

    def shown() -> bool:
        return '"processes": 1' in pgsched_cli.run("status", "--json").out

    eventually(shown, "the row says so", every=0.2)
    ends(command)


def test_scale_reaches_supervisors_from_elsewhere(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    first, second = (pgsched_cli("run", APP, "--processes", "1") for _ in range(2))
    numbers = [re.search(r"\d+", command.wait_for(r"registered supervisor=\d+")[0]) for command in (first, second)]
    assert numbers[0]
    rows.add("nap", {"seconds": 0.02}, count=150)
    eventually(audit.entries, "work is under way", timeout=20)
    ended = pgsched_cli.run("scale", "3")
    assert ended.code == 0, ended
    assert ended.out.count("asked for 3 processes; it has 1") == 2
    for command in (first, second):
        command.wait_for("resized processes=3 before=1")
        eventually(lambda command=command: len(workers(command)) == 3)  # type: ignore[misc]

    def shown() -> list[int]:
        listed = json.loads(pgsched_cli.run("status", "--json").out)["supervisors"]
        return [each["processes"] for each in listed]

    eventually(lambda: shown() == [3, 3], "the rows say so", every=0.2)
    ended = pgsched_cli.run("scale", "1", "--supervisor", f"{numbers[0][0]},nowhere", "--json")
    assert ended.code == 1
    assert ended.err == "pgsched: there is no live supervisor nowhere\n"
    told = json.loads(ended.out)
    assert [each["id"] for each in told["supervisors"]] == [int(numbers[0][0])]
    assert told["unknown"] == ["nowhere"]
    first.wait_for("resized processes=1 before=3")
    # What a signal asks later counts, whatever the row asked for before.
    first.signal(signal.SIGTTIN)
    first.wait_for("resized processes=2 before=1")
    eventually(lambda: sorted(shown()) == [2, 3], "the rows say so", every=0.2)
    ended = pgsched_cli.run("scale", "2", "--supervisor", socket.gethostname())
    assert ended.code == 0
    second.wait_for("resized processes=2 before=3")
    rows.all_ended(timeout=40)
    assert "INFO resized" not in second.err.split("before=3")[1]
    executed_once(rows, audit)
    ends(first)
    ends(second)
    ended = pgsched_cli.run("scale", "2")
    assert (ended.code, ended.err) == (1, "pgsched: there is no live supervisor\n")


def test_scale_reaches_one_that_does_not_listen(rows: Rows, pgsched_cli: CommandLine) -> None:
    """With its next renewal."""
    command = pgsched_cli("run", APP, "--processes", "1", "--poll-only", "--lease", "6")
    command.wait_for("registered")
    assert pgsched_cli.run("scale", "2").code == 0
    command.wait_for("resized processes=2")
    eventually(lambda: len(workers(command)) == 2)
    ends(command)


def test_a_slot_that_goes_lets_its_task_end_and_gives_back_what_waits_behind(
    rows: Rows, pgsched_cli: CommandLine, audit: Audit
) -> None:
    command = pgsched_cli("run", APP, "--processes", "2")
    first = rows.add("nap", {"seconds": 3.0}, count=2)
    eventually(lambda: len(audit.entries()) == 2, "both tasks run", timeout=20)
    command.signal(signal.SIGTTOU)
    command.wait_for("resized processes=1")
    rows.add("nap", count=10)
    rows.all_ended()
    executed_once(rows, audit)
    assert set(audit.executions()) > set(first)
    eventually(lambda: len(workers(command)) == 1)
    later = [entry for entry in audit.entries() if entry.task_id not in first]
    assert len({entry.pid for entry in later}) == 1
    ends(command)
