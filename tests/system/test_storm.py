"""Deaths of every kind at once: workers that kill themselves, and a supervisor that is killed and comes back."""

import os
import signal
import time
from functools import partial

import pytest

from tests.audit import Audit
from tests.command import Command
from tests.history import History
from tests.support import Server, eventually, gone
from tests.system.conftest import CommandLine

TASKS = 200
STORM = 5.0
"""Seconds between two kills of the second supervisor."""

APP = """
import os, random, signal, time
from pgsched import App, Retry
from tests.audit import entry

app = App()

@app.task(retry=Retry(max=3, base=0.1, cap=1))
def fragile(chance: float) -> None:
    with entry():
        time.sleep(0.15)
        if random.SystemRandom().random() < chance:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(180)
def test_every_task_ends_by_the_rules_while_workers_and_supervisors_die(
    server: Server, dsn: str, pgsched_cli: CommandLine, audit: Audit
) -> None:
    history = History(server, dsn)
    pgsched_cli.module("storm", APP)
    server.sql(
        "INSERT INTO scheduled_tasks (task_type, payload, run_at)"
        " SELECT 'fragile', '{\"chance\": 0.3333}', now() FROM generate_series(1, %s)",
        TASKS,
        dsn=dsn,
    )
    options = ("--processes", "2", "--lease", "4", "--reap-interval", "1")
    steady = pgsched_cli("run", "storm:app", *options)
    victim = pgsched_cli("run", "storm:app", *options)
    killed_at = time.monotonic()
    kills = 0

    def ended() -> bool:
        nonlocal victim, killed_at, kills
        if time.monotonic() - killed_at > STORM:
            victim.signal(signal.SIGKILL)
            victim.wait()
            victim = pgsched_cli("run", "storm:app", *options)
            killed_at = time.monotonic()
            kills += 1
        left: int = server.value("SELECT count(*) FROM scheduled_tasks_live", dsn=dsn)
        return left == 0

    eventually(ended, "no task is left", timeout=150, every=0.1)
    assert kills > 0, "the storm was over before it began"
    # It may have come back just now, and a process that is still starting dies by the signal.
    victim.wait_for("registered")
    for command in (steady, victim):
        command.signal(signal.SIGTERM)
        assert command.wait().code == 0, command

    rows = server.sql("SELECT id, status, retry_count, max_retries FROM scheduled_tasks", dsn=dsn)
    assert len(rows) == TASKS
    claims, executions = history.claims(), audit.executions()
    for task_id, status, retry_count, max_retries in rows:
        assert status in ("completed", "failed")
        assert executions.get(task_id, 0) <= claims[task_id] <= max_retries + 1
        if status == "failed":
            assert claims[task_id] == max_retries + 1
            assert retry_count == max_retries
    assert all(count == 1 for count in history.settles().values()), "two settles were accepted under one fence"
    failed_attempts = server.value("SELECT count(*) FROM pgsched_failures", dsn=dsn)
    completed = sum(status == "completed" for _, status, _, _ in rows)
    assert failed_attempts == sum(claims.values()) - completed, "every claim but the last good one left a record"
    for command in pgsched_cli.commands:
        eventually(partial(_is_empty, command), "no process is left over")


def _is_empty(command: Command) -> bool:
    return not command.processes()


FREEZE = """
import time
from pgsched import App
from tests.audit import entry

app = App()

@app.task
def slow(seconds: float) -> str:
    with entry():
        time.sleep(seconds)
    return "done"
"""


@pytest.mark.timeout(120)
def test_a_supervisor_frozen_past_its_lease_changes_nothing_when_it_wakes(
    server: Server, dsn: str, pgsched_cli: CommandLine, audit: Audit
) -> None:
    history = History(server, dsn)
    pgsched_cli.module("freeze", FREEZE)
    server.sql(
        "INSERT INTO scheduled_tasks (task_type, payload, run_at) SELECT 'slow', '{\"seconds\": 12}', now()"
        " FROM generate_series(1, 2)",
        dsn=dsn,
    )
    options = ("--processes", "2", "--lease", "4", "--reap-interval", "0.5")
    frozen = pgsched_cli("run", "freeze:app", *options)
    eventually(lambda: len(audit.entries()) == 2, "both tasks run")
    old = {entry.pid for entry in audit.entries()}
    first = server.value("SELECT max(claimed_by) FROM scheduled_tasks_live", dsn=dsn)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        other = pgsched_cli("run", "freeze:app", "--processes", "2", "--lease", "60", "--reap-interval", "0.5")
        eventually(lambda: len(audit.entries()) == 4, "the other runs them again")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    frozen.wait_for("lease_lost")
    eventually(lambda: not old & {found.pid for found in frozen.processes()}, "its stale workers are stopped")
    eventually(
        lambda: server.value("SELECT count(*) FROM scheduled_tasks WHERE status = 'completed'", dsn=dsn) == 2,
        "both tasks are completed",
    )
    assert not [c for c in history.changes() if c.owner_before == first and c.after not in ("processing",)], (
        "a claim of the frozen supervisor was settled"
    )
    assert set(server.sql("SELECT retry_count, result FROM scheduled_tasks", dsn=dsn)) == {(1, "done")}

    other.signal(signal.SIGTERM)
    assert other.wait().code == 0
    server.sql(
        "INSERT INTO scheduled_tasks (task_type, payload, run_at) VALUES ('slow', '{\"seconds\": 0}', now())", dsn=dsn
    )
    eventually(
        lambda: server.value("SELECT count(*) FROM scheduled_tasks WHERE status = 'completed'", dsn=dsn) == 3,
        "the thawed one registers anew and works on",
    )
    frozen.signal(signal.SIGTERM)
    assert frozen.wait().code == 0


STUBBORN = """
import time
from pgsched import App, Interrupted
from tests.audit import entry

app = App()

@app.task
def stubborn() -> None:
    with entry():
        while True:
            try:
                time.sleep(60)
            except Interrupted:
                pass
"""


def test_a_worker_that_will_not_stop_does_not_outlive_the_lease_that_was_lost(
    server: Server, dsn: str, pgsched_cli: CommandLine, audit: Audit
) -> None:
    pgsched_cli.module("headstrong", STUBBORN)
    server.sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('stubborn', now())", dsn=dsn)
    frozen = pgsched_cli("run", "headstrong:app", "--processes", "1", "--lease", "2")
    [running] = eventually(audit.entries, "the task runs")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        eventually(
            lambda: server.value("SELECT bool_and(lease_until < now()) FROM pgsched_supervisors", dsn=dsn),
            "its lease has run out",
        )
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    frozen.wait_for("lease_lost")
    # The grace of any other stop is five seconds.
    eventually(lambda: gone(running.pid), "its worker was killed", timeout=4.5)
