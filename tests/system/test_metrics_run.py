"""What a running supervisor shows of itself: metrics that equal the table, health, logs, systemd's messages."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command
from tests.proxy import Proxy
from tests.scraped import Scraped
from tests.support import ROOT, Server, eventually
from tests.system.conftest import CommandLine

TASKS = """
import os, signal, time
from prometheus_client import Counter
from pgsched import App, Retry

app = App()
sent = Counter("parcels_sent", "help")
quick = Retry(max=1, base=0.0, cap=0.0)

@app.task(retry=quick)
def good() -> None:
    sent.inc()

@app.task(retry=quick)
def bad() -> None:
    raise ValueError("no")

@app.task(retry=quick)
def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(retry=quick, timeout=0.2)
def slow() -> None:
    time.sleep(60)

@app.task(retry=quick)
def noisy() -> None:
    for _ in range(160):
        os.write(2, b"x" * 65535 + b"\\n")
        print("y" * 65535)
"""

ENQUEUE = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at, max_retries)
    SELECT %s, '{}', now(), 1 FROM generate_series(1, %s)
"""


@pytest.fixture
def enqueue(server: Server, dsn: str, pgsched_cli: CommandLine) -> Callable[..., None]:
    """Writes the app, and inserts so many rows of each type."""
    pgsched_cli.module("metered", TASKS)

    def enqueue(**counts: int) -> None:
        for name, count in counts.items():
            server.sql(ENQUEUE, name, count, dsn=dsn)

    return enqueue


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.settimeout(20)
        yield receiving


def address(command: Command) -> str:
    return command.wait_for(r"metrics_served.*?(http://[^\s\"]+)")[1]


def scrape(command: Command) -> Scraped:
    with urllib.request.urlopen(f"{address(command)}/metrics", timeout=20) as answer:
        return Scraped(answer.read().decode())


def all_ended(server: Server, dsn: str) -> bool:
    unended = "SELECT count(*) FROM scheduled_tasks WHERE status IN ('queued', 'processing')"
    return bool(server.value(unended, dsn=dsn) == 0)


def events(command: Command, name: str) -> list[dict[str, Any]]:
    return [record for line in command.err.splitlines() if (record := json.loads(line))["event"] == name]


def test_f80_totals_equal_the_table(
    server: Server, dsn: str, pgsched_cli: CommandLine, enqueue: Callable[..., None]
) -> None:
    enqueue(good=900, bad=40, deadly=20, slow=4)
    command = pgsched_cli("run", "metered:app", "--processes", "4")
    eventually(lambda: all_ended(server, dsn), timeout=60, every=0.1)
    table = dict(server.sql("SELECT task_type || ' ' || status, count(*) FROM scheduled_tasks GROUP BY 1", dsn=dsn))
    failures = dict(
        server.sql(
            "SELECT t.task_type || ' ' || f.outcome, count(*) FROM pgsched_failures f"
            " JOIN scheduled_tasks t ON t.id = f.task_id GROUP BY 1",
            dsn=dsn,
        )
    )

    def settled(scraped: Scraped) -> dict[str, float]:
        return {
            f"{sample.labels['task_type']} {sample.labels['verdict']}": sample.value
            for sample in scraped.families["pgsched_settled"].samples
            if sample.value and sample.labels["verdict"] in ("completed", "failed")
        }

    # The last answer of the table is counted a moment after others can see what it answers.
    eventually(lambda: settled(scrape(command)) == table, "what was settled is counted")
    scraped = scrape(command)
    counted = {
        f"{sample.labels['task_type']} {sample.labels['outcome']}": sample.value
        for sample in scraped.families["pgsched_failures"].samples
        if sample.value
    }
    assert counted == failures
    assert scraped.total("pgsched_claimed_total") == 900 + 2 * (40 + 20 + 4)
    assert scraped.value("scheduler_lock_attempts_total", result="acquired") == 900 + 2 * (40 + 20 + 4)
    duration = "scheduler_task_execution_duration_seconds_count"
    assert scraped.value(duration, task_type="good", status="completed") == 900
    assert scraped.total(duration, status="failed") == 2 * (40 + 20 + 4)
    assert scraped.value("parcels_sent_total") == 900
    assert scraped.value("pgsched_worker_restarts_total", reason="crashed") == 40
    assert scraped.total("pgsched_slots") == 4
    # These are sampled.
    for task_type in ("good", "bad", "deadly", "slow"):
        eventually(lambda: scrape(command).value("pgsched_task_cpu_seconds_total", task_type=task_type), task_type)  # noqa: B023
    eventually(lambda: scrape(command).total("pgsched_slot_busy_seconds_total") > 4 * 0.2)


def test_a_supervisor_that_is_cut_off_tells_nothing_of_the_table_and_no_lease(
    server: Server, dsn: str, pgsched_cli: CommandLine, enqueue: Callable[..., None], proxy: Proxy
) -> None:
    enqueue()
    server.sql("INSERT INTO scheduled_tasks (task_type, payload, run_at) VALUES ('nobody', '{}', now())", dsn=dsn)
    options = ("--processes", "1", "--lease", "2", "--db-timeout", "1")
    command = pgsched_cli("run", "metered:app", *options, environment={"PGSCHED_DSN": proxy.dsn})
    of_the_table = ["queue_depth", "oldest_due_seconds", "due_tasks", "oldest_snapshot_transactions", "table_dead_rows"]

    def told() -> tuple[list[str], bool]:
        scraped = scrape(command)
        names = [name for name in of_the_table if f"pgsched_{name}" in scraped.families]
        return names, bool(scraped.value("pgsched_lease_remaining_seconds"))

    eventually(lambda: told() == (of_the_table, True), timeout=30, every=0.1)
    # A machine that stalls may have lost it one before.
    lost = scrape(command).total("pgsched_leases_lost_total")
    proxy.refuse()
    # What moves by the minute is asked by the minute.
    eventually(lambda: told() == (of_the_table[3:], False), timeout=30, every=0.1)
    eventually(lambda: scrape(command).value("pgsched_leases_lost_total") == lost + 1, "the loss is counted")
    proxy.pass_on()
    eventually(lambda: told() == (of_the_table, True), timeout=30, every=0.1)


def test_f80_a_port_in_use_is_one_line_and_port_0_is_any(
    pgsched_cli: CommandLine, enqueue: Callable[..., None]
) -> None:
    enqueue()
    first = pgsched_cli("run", "metered:app", "--processes", "1")
    taken = address(first).removeprefix("http://")
    ended = pgsched_cli.run("run", "metered:app", "--metrics-address", taken)
    assert ended.code == 8
    assert ended.err.count("\n") == 1
    assert f"--metrics-address {taken}: this address is in use" in ended.err


def test_health_follows_the_life_of_the_supervisor(
    pgsched_cli: CommandLine, enqueue: Callable[..., None], manager: socket.socket, tmp_path: Path
) -> None:
    enqueue()
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    command = pgsched_cli("run", "metered:app", "--processes", "1", environment=environment)
    messages: list[str] = []
    eventually(lambda: messages.append(manager.recv(4096).decode()) or _told(messages, "READY=1"))  # type: ignore[func-returns-value]
    with urllib.request.urlopen(f"{address(command)}/healthz", timeout=20) as answer:
        assert answer.status == 200
    eventually(lambda: messages.append(manager.recv(4096).decode()) or _told(messages, "WATCHDOG=1"))  # type: ignore[func-returns-value]
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0
    manager.settimeout(0.5)
    eventually(lambda: messages.append(manager.recv(4096).decode()) or _told(messages, "STOPPING=1"))  # type: ignore[func-returns-value]


def _told(messages: list[str], word: str) -> bool:
    return any(word in message.split("\n") for message in messages)


def test_a_failure_is_one_json_line_with_all_that_identifies_it(
    server: Server, dsn: str, pgsched_cli: CommandLine, enqueue: Callable[..., None]
) -> None:
    enqueue(deadly=1)
    command = pgsched_cli("run", "metered:app", "--processes", "1", "--log-format", "json")
    eventually(lambda: all_ended(server, dsn))
    eventually(lambda: len(events(command, "task_crashed")) == 2)
    first, second = events(command, "task_crashed")
    task_id = server.value("SELECT id FROM scheduled_tasks", dsn=dsn)
    for attempt, verdict, record in ((1, "retry", first), (2, "failed", second)):
        assert record["task_id"] == task_id
        assert record["task_type"] == "deadly"
        assert (record["attempt"], record["slot"], record["verdict"]) == (attempt, 0, verdict)
        assert record["error"] == "killed by signal 9 (SIGKILL)"
        assert record["seconds"] >= 0
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0
    assert all(json.loads(line) for line in command.err.splitlines())


def test_f78_the_directory_goes_with_its_supervisor(
    pgsched_cli: CommandLine, enqueue: Callable[..., None], tmp_path: Path
) -> None:
    enqueue()
    place = tmp_path / "metrics"
    place.mkdir()
    (place / "counter_1.db").write_bytes(b"of an earlier run")
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(place)}
    first = pgsched_cli("run", "metered:app", "--processes", "1", environment=environment)
    second = pgsched_cli("run", "metered:app", "--processes", "1", environment=environment)
    for command in (first, second):
        assert scrape(command).value("pgsched_fenced_total") == 0
    assert len(list(place.iterdir())) == 3
    second.signal(signal.SIGKILL)
    second.wait()
    first.signal(signal.SIGTERM)
    assert first.wait().code == 0
    third = pgsched_cli("run", "metered:app", "--processes", "1", environment=environment)
    third.wait_for("registered")
    third.signal(signal.SIGTERM)
    assert third.wait().code == 0
    assert [path.name for path in place.iterdir()] == ["counter_1.db"]


@pytest.mark.parametrize("stderr", ["closed pipe", "full pipe", "full disk"])
def test_f13_a_standard_error_that_takes_nothing_stalls_nobody(
    server: Server, dsn: str, pgsched_cli: CommandLine, enqueue: Callable[..., None], stderr: str
) -> None:
    enqueue(noisy=8, bad=20, good=50)
    reading, writing = os.pipe()
    if stderr == "closed pipe":
        os.close(reading)
    output = os.open("/dev/full", os.O_WRONLY) if stderr == "full disk" else writing
    process = subprocess.Popen(
        [sys.executable, "-m", "pgsched", "run", "metered:app", "--processes", "2"],
        cwd=pgsched_cli.directory,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            **pgsched_cli.environment,
            "PYTHONPATH": f"{pgsched_cli.directory}{os.pathsep}{ROOT}",
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        eventually(lambda: all_ended(server, dsn), timeout=60, every=0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        for descriptor in {reading, writing, output} - ({reading} if stderr == "closed pipe" else set()):
            os.close(descriptor)
    statuses = dict(server.sql("SELECT status, count(*) FROM scheduled_tasks GROUP BY 1", dsn=dsn))
    assert statuses == {"completed": 58, "failed": 20}


def test_f82_no_password_in_what_is_shown(
    server: Server, dsn: str, pgsched_cli: CommandLine, enqueue: Callable[..., None]
) -> None:
    enqueue(good=1)
    secret = "s3cr3t!pw"
    command = pgsched_cli(
        "run", "metered:app", "--processes", "1", environment={"PGPASSWORD": secret, "PGSCHED_DSN": dsn}
    )
    eventually(lambda: all_ended(server, dsn))
    server.terminate(dsn, "pgsched%")
    command.wait_for("database_back")
    text = scrape(command).text
    assert re.search(r"^pgsched_database_outages_total [1-9]", text, re.MULTILINE)
    command.signal(signal.SIGTERM)
    ended = command.wait()
    assert secret not in text + ended.out + ended.err
