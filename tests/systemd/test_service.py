"""The service under a real systemd: start, status, watchdog, outage, stop, crash, limits."""

import re
from collections.abc import Callable

import pytest

from pgsched.store.schema import migrate
from tests.proxy import Proxy
from tests.support import Server, database_of, eventually
from tests.system.rows import Rows
from tests.systemd.conftest import Service, write_app
from tests.systemd.container import APP, Container

# The first test waits for the tree to be made.
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow, pytest.mark.unpooled]

Wait = Callable[..., None]


@pytest.fixture
def running(rows: Rows) -> Wait:
    """Waits until so many tasks have begun."""

    def running(count: int) -> None:
        begun = "status = 'processing' AND started_at IS NOT NULL"
        eventually(lambda: rows.count(begun) == count, f"{count} tasks run", timeout=30)

    return running


def test_it_is_ready_when_the_workers_are_warm(
    booted: Container, service: Service, rows: Rows, server: Server, dsn: str
) -> None:
    gate = booted.path(APP / "gate")
    gate.touch()
    booted("systemctl enable pgsched", check=True)
    booted("systemctl start --no-block pgsched", check=True)
    try:
        eventually(lambda: "the import is held up" in booted.journal(), "it boots", timeout=30, every=0.1)
        # The supervisor is there, has looked at the database, and says nothing yet.
        assert service.show("ActiveState") == "activating"
        assert service.slots() == {}
    finally:
        gate.unlink()
    service.is_in("active")
    assert sorted(service.slots().values()) == ["pgsched-slot0", "pgsched-slot1"]
    assert server.value("SELECT count(*) FROM pgsched_supervisors WHERE lease_until > now()", dsn=dsn) == 1
    [task_id] = rows.add("nap")
    rows.all_ended()
    assert rows.row(task_id).result == 1


def test_the_password_is_read_from_a_file_that_root_alone_may_read(
    booted: Container, password: str, service: Service, server: Server, dsn: str
) -> None:
    booted("systemctl start pgsched", check=True)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND usename = 'pgsched_unit'"
    eventually(lambda: server.value(sessions, database_of(dsn)) >= 3, "it has its connections")
    pid = service.pid
    assert password not in booted(f"cat /proc/{pid}/environ /proc/{pid}/cmdline", check=True).out
    assert booted("runuser -u pgsched -- cat /etc/pgsched/pg_service.conf").code != 0
    booted("systemctl stop pgsched")
    # Another one, and the server says no: the file is what counts.
    booted("sed -i 's/^password=.*/password=wrong/' /etc/pgsched/pg_service.conf", check=True)
    service.set(Environment="PGSCHED_WAIT_FOR_DATABASE=0s", Restart="no")
    assert booted("systemctl start pgsched").code != 0
    assert "password authentication failed" in booted.journal()


def test_the_status_has_counts(booted: Container, service: Service, rows: Rows) -> None:
    booted("systemctl start pgsched", check=True)
    rows.add("nap", {"seconds": 60.0}, count=2)
    rows.add("nap", count=1230, due=3600.0)
    rows.add("nap", count=4)
    shown = r"Status: \"running: 2 running, 1,234 queued, \d+\.\d completed/s\""
    eventually(lambda: re.search(shown, booted("systemctl status pgsched").out), "the status", timeout=30, every=0.2)


def test_it_exposes_little(booted: Container, service: Service) -> None:
    judged = booted("systemd-analyze security --threshold=25 pgsched.service")
    assert judged.code == 0, judged.out
    assert "Overall exposure level" in judged.out


def test_a_frozen_supervisor_is_replaced_and_its_tasks_run_again(
    booted: Container, service: Service, rows: Rows, running: Wait
) -> None:
    service.set(WatchdogSec="3s")
    booted("systemctl start pgsched", check=True)
    ids = rows.add("nap", {"seconds": 300.0, "again": 0.0}, count=2)
    running(2)
    frozen, workers = service.pid, service.slots()
    booted(f"kill -STOP {frozen}", check=True)
    eventually(lambda: service.show("NRestarts") == "1", "it is started again", timeout=60, every=0.1)
    service.is_in("active")
    assert service.pid != frozen
    assert "watchdog" in booted("journalctl -u pgsched", check=True).out.lower()
    assert "watchdog" in booted.journal().lower()
    rows.all_ended(timeout=60)
    assert [rows.row(task_id)[:2] for task_id in ids] == [("completed", 1)] * 2
    assert not workers.keys() & service.slots().keys()
    assert booted(f"kill -0 {' '.join(map(str, [frozen, *workers]))}").code != 0


def test_an_outage_of_the_database_does_not_starve_the_watchdog(
    booted: Container, service: Service, rows: Rows, proxy: Proxy
) -> None:
    service.install("--processes", "2", "--lease", "2s", "--db-timeout", "1s")
    service.set(WatchdogSec="3s")
    booted("systemctl start pgsched", check=True)
    before = service.pid
    proxy.refuse()
    eventually(
        lambda: service.show("StatusText").endswith("; the database is away"), "it says so", timeout=60, every=0.2
    )
    # Several times the watchdog's patience, and longer than the lease.
    began = float(booted("cut -d' ' -f1 /proc/uptime").out)
    eventually(lambda: float(booted("cut -d' ' -f1 /proc/uptime").out) > began + 10, timeout=60, every=0.5)
    assert (service.pid, service.show("NRestarts"), service.show("ActiveState")) == (before, "0", "active")
    proxy.pass_on()
    rows.add("nap")
    rows.all_ended(timeout=60)
    assert service.pid == before


def test_a_reload_replaces_the_workers_one_by_one(
    booted: Container, service: Service, rows: Rows, running: Wait
) -> None:
    """Nothing is lost, nothing is run twice, and what runs ends as the version that it has begun as."""
    booted("systemctl start pgsched", check=True)
    long = rows.add("nap", {"seconds": 4.0}, count=1)
    running(1)
    before, old = service.pid, service.slots()
    write_app(booted, version=2)
    short = rows.add("nap", {"seconds": 0.1}, count=50)
    booted("systemctl reload pgsched", check=True)
    after = rows.add("nap", count=10)
    rows.all_ended(timeout=60)
    results = {task_id: rows.row(task_id) for task_id in [*long, *short, *after]}
    assert {row[:2] for row in results.values()} == {("completed", 0)}
    assert [results[task_id].result for task_id in long] == [1]
    assert {results[task_id].result for task_id in short} <= {1, 2}
    eventually(lambda: not old.keys() & service.slots().keys(), "no old worker is left", timeout=60, every=0.1)
    eventually(lambda: len(service.slots()) == 2, "there are two new ones", timeout=60, every=0.1)
    [last] = rows.add("nap")
    eventually(lambda: rows.row(last).status == "completed", timeout=30)
    assert rows.row(last).result == 2
    assert (service.pid, service.show("ActiveState"), service.show("NRestarts")) == (before, "active", "0")
    assert "reload" in booted.journal()


def test_a_reload_of_what_cannot_be_imported_changes_nothing(booted: Container, service: Service, rows: Rows) -> None:
    booted("systemctl start pgsched", check=True)
    before, old = service.pid, service.slots()
    booted.path(APP / "tasks.py").write_text("raise ValueError('no')\n")
    booted("systemctl reload pgsched", check=True)
    eventually(lambda: "reload_failed" in booted.journal(), "it says so", timeout=60, every=0.1)
    service.is_in("active")
    [task_id] = rows.add("nap")
    eventually(lambda: rows.row(task_id).status == "completed", timeout=30)
    assert rows.row(task_id).result == 1
    assert (service.pid, service.slots()) == (before, old)


def test_stop_drains(booted: Container, service: Service, rows: Rows, running: Wait) -> None:
    booted("systemctl start pgsched", check=True)
    ids = rows.add("nap", {"seconds": 4.0}, count=2)
    waiting = rows.add("nap", {"seconds": 4.0}, count=3)
    running(2)
    booted("systemctl stop pgsched", check=True)
    # Stop returns when nothing is left.
    assert [rows.row(task_id)[:2] for task_id in ids] == [("completed", 0)] * 2
    assert {rows.row(task_id)[:2] for task_id in waiting} == {("queued", 0)}
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert booted("grep -l -s pgsched /proc/[0-9]*/comm").out == ""


def test_a_stop_that_takes_too_long_gives_the_tasks_back(
    booted: Container, service: Service, rows: Rows, running: Wait
) -> None:
    service.install("--processes", "2", "--drain-timeout", "1s")
    assert service.show("TimeoutStopUSec") == "1min 21s"
    booted("systemctl start pgsched", check=True)
    ids = rows.add("nap", {"seconds": 300.0}, count=2)
    running(2)
    booted("systemctl stop pgsched", check=True)
    assert {rows.row(task_id)[:2] for task_id in ids} == {("queued", 0)}
    assert service.show("Result") == "success"


def test_a_crash_is_followed_by_a_start(booted: Container, service: Service, rows: Rows, running: Wait) -> None:
    booted("systemctl start pgsched", check=True)
    ids = rows.add("nap", {"seconds": 300.0, "again": 0.0}, count=2)
    running(2)
    killed, workers = service.pid, service.slots()
    booted("systemctl kill --kill-who=main --signal=KILL pgsched", check=True)
    eventually(lambda: service.show("NRestarts") == "1", "it is started again", timeout=60, every=0.1)
    service.is_in("active")
    shown = booted("systemctl show -p NRestarts -p Result pgsched", check=True).out.split()
    assert sorted(shown) == ["NRestarts=1", "Result=success"]
    assert service.pid != killed
    rows.all_ended(timeout=60)
    assert [rows.row(task_id)[:2] for task_id in ids] == [("completed", 1)] * 2
    assert not workers.keys() & service.slots().keys()


def test_starts_that_fail_at_once_have_a_limit(booted: Container, service: Service, empty_dsn: str) -> None:
    """The schema is missing: exit code 4, again and again."""
    service.dsn = re.sub(r"dbname=\S+", f"dbname={database_of(empty_dsn)}", service.dsn)
    service.install("--processes", "2")
    booted("systemctl start pgsched")
    service.is_in("failed")
    eventually(lambda: "repeated too quickly" in booted.journal(), "systemd has had enough", timeout=60, every=0.2)
    # Five starts.
    assert service.show("NRestarts") == "5"
    migrate(empty_dsn)
    assert booted("systemctl start pgsched").code != 0
    booted("systemctl reset-failed pgsched", check=True)
    booted("systemctl start pgsched", check=True)


def test_what_does_not_mend_by_itself_is_not_started_again(booted: Container, service: Service) -> None:
    booted.path(APP / "tasks.py").write_text("raise ValueError('no')\n")
    assert booted("systemctl start pgsched").code != 0
    service.is_in("failed")
    assert (service.show("NRestarts"), service.show("ExecMainStatus")) == ("0", "5")


def test_a_start_waits_for_the_database(booted: Container, service: Service, proxy: Proxy) -> None:
    proxy.refuse()
    booted("systemctl start --no-block pgsched", check=True)
    eventually(lambda: "waiting 60 s for the database" in booted.journal(), "it waits", timeout=30, every=0.2)
    assert service.show("ActiveState") == "activating"
    proxy.pass_on()
    service.is_in("active")
    assert service.show("NRestarts") == "0"


def test_a_worker_that_is_killed_at_the_units_memory_limit_takes_nobody_with_it(
    booted: Container, service: Service, rows: Rows, running: Wait
) -> None:
    if not booted.limits_memory:
        pytest.skip("systemd in the container has no memory controller, so there is no MemoryMax= to be killed at")
    booted("systemctl start pgsched", check=True)
    booted("systemctl set-property pgsched MemoryMax=300M", check=True)
    [beside] = rows.add("nap", {"seconds": 15.0})
    running(1)
    before, workers = service.pid, service.slots()
    [large] = rows.add("grow", {"mebibytes": 2000})
    eventually(lambda: rows.row(large).status == "completed", "it was tried again", timeout=60)
    [failure] = rows.failures(large)
    assert (failure.outcome, failure.signal) == ("crashed", 9)
    eventually(lambda: rows.row(beside).status == "completed", "the other one has ended", timeout=60)
    assert rows.row(beside).retry_count == 0
    assert (service.pid, service.show("NRestarts"), service.show("ActiveState")) == (before, "0", "active")
    # One of two has been replaced.
    assert len(workers.keys() & service.slots().keys()) == 1
    booted("systemctl revert pgsched", check=True)
    assert service.show("MemoryMax") == "infinity"


def test_instances_run_side_by_side(
    booted: Container, service: Service, mail: Service, rows: Rows, server: Server, dsn: str
) -> None:
    service.install("--processes", "1", "--queues", "default")
    booted("systemctl start pgsched", check=True)
    booted("systemctl start pgsched@mail", check=True)
    assert list(service.slots().values()) == list(mail.slots().values()) == ["pgsched-slot0"]
    # Each serves its own.
    booted("systemctl stop pgsched", check=True)
    [letter] = rows.add("nap", queue="mail")
    [other] = rows.add("nap")
    eventually(lambda: rows.row(letter).status == "completed", "the letter is sent", timeout=30)
    assert rows.row(other).status == "queued"
    booted("systemctl stop pgsched@mail", check=True)
