"""Run it as a service: somebody does what docs/ says, under a real systemd and with a real Prometheus, step by step.

What is typed stands on the page that is named beside it. Three things are not as on the pages: the app and pgsched lie
in the container already, the metrics have a port of their own, and alerts wait two seconds instead of minutes.
"""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring.prometheus import ALERTS, needs_prometheus, prometheus
from tests.proxy import Proxy
from tests.support import Server, eventually
from tests.systemd.conftest import write_app
from tests.systemd.container import Container
from tests.systemd.site import Site, now

# The first test waits for the tree to be made.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.unpooled, needs_prometheus]
PATIENCE = 90.0


@pytest.fixture
def site(booted: Container, server: Server, empty_dsn: str, password: str, tmp_path: Path) -> Iterator[Site]:
    """An empty database, no service yet, and a Prometheus that waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    booted.begin_journal()
    write_app(booted, version=1)
    proxy = Proxy(empty_dsn)
    try:
        rules = re.sub(r"for: \d+m", "for: 2s", ALERTS.read_text())
        with prometheus(tmp_path, [f"127.0.0.1:{port}"], rules) as watched:
            found = Site(booted, server, proxy, password, watched, port)
            found.clear()
            yield found
            found.service.clear()
    finally:
        proxy.close()


def test_it_runs_as_a_service(site: Site) -> None:
    install_and_start(site)
    is_scraped(site)
    alert_fires_and_is_resolved(site)
    another_process_under_load(site)
    another_version_under_load(site)
    find_what_kills_its_worker(site)
    stop_under_load(site)
    every_task_was_executed_once(site)


def install_and_start(site: Site) -> None:
    """The whole section; the last command returns when the service is ready."""
    site.follow("systemd.md", "Install")
    assert site.container("systemctl is-enabled pgsched").out == "enabled\n"
    assert site.service.show("ActiveState") == "active"
    assert sorted(site.service.slots().values()) == ["pgsched-slot0", "pgsched-slot1"]
    assert 'Status: "running: 0 running' in site.type("systemd.md", "systemctl status pgsched")
    assert re.search(r"^1 .* left\)$", site.type("runbook.md", "pgsched status"), re.MULTILINE)


def is_scraped(site: Site) -> None:
    seen = 'sum(pgsched_slots) == 2 and on () up{job="pgsched"} == 1 and on () sum(pgsched_lease_remaining_seconds) > 0'
    eventually(lambda: site.watched.ask(seen), "it is scraped", timeout=PATIENCE, every=0.2)
    [group] = site.watched.get("rules")["groups"]
    assert [rule for rule in group["rules"] if rule["health"] == "err"] == []
    assert state_of(site, "PgschedDown") == "inactive"


def alert_fires_and_is_resolved(site: Site) -> None:
    """The service is stopped though there is work; the runbook's section leads to the cure."""
    with site.load():
        waiting = 'pgsched_queue_depth{state="queued"} > 0 and on () sum(scheduler_active_workers) == 2'
        eventually(lambda: site.watched.ask(waiting), "the load is seen", timeout=PATIENCE, every=0.2)
        site.type("systemd.md", "systemctl stop pgsched")
        eventually(lambda: state_of(site, "PgschedDown") == "firing", timeout=PATIENCE, every=0.2)
        assert "no supervisor is registered" in site.type("runbook.md", "pgsched status")
        stopped = now()
        site.type("systemd.md", "systemctl start pgsched")
        eventually(lambda: state_of(site, "PgschedDown") == "inactive", timeout=PATIENCE, every=0.2)
        eventually(lambda: began_since(site, stopped), "work goes on", timeout=PATIENCE, every=0.2)


def another_process_under_load(site: Site) -> None:
    with site.load():
        begun, pid, before = now(), site.service.pid, site.service.slots()
        assert "asked for 3 processes; it has 2" in site.type("tuning.md", "pgsched scale 4", "pgsched scale 3")
        eventually(lambda: len(site.service.slots()) == 3, "there are three", timeout=PATIENCE, every=0.1)
        [added] = site.service.slots().keys() - before.keys()
        eventually(lambda: added in workers_since(site, begun), "the third works", timeout=PATIENCE, every=0.1)
        asked = now()
        eventually(lambda: workers_since(site, asked) >= before.keys(), "so do the two", timeout=PATIENCE, every=0.1)
        assert site.service.pid == pid
        status = site.type("runbook.md", "pgsched status")
        assert re.search(r"^\d+ +\S+ +\d+ +3 +\d+% ", status, re.MULTILINE)
        assert re.search(r"^work .*\n[\d.]+ processes needed; there are 3$", status, re.MULTILINE)
        eventually(lambda: site.watched.ask("sum(pgsched_slots) == 3"), "Prometheus knows", timeout=PATIENCE, every=0.2)
    assert site.rest(begun) < 10


def another_version_under_load(site: Site) -> None:
    with site.load():
        begun, pid, before = now(), site.service.pid, site.service.slots()
        eventually(lambda: workers_since(site, begun) >= before.keys(), "all work", timeout=PATIENCE, every=0.1)
        write_app(site.container, version=2)
        site.type("systemd.md", "systemctl reload pgsched")
        eventually(lambda: not before.keys() & site.service.slots().keys(), timeout=PATIENCE, every=0.1)
        eventually(lambda: len(site.service.slots()) == 3, "there are three again", timeout=PATIENCE, every=0.1)
        replaced, after = now(), site.service.slots()
        eventually(lambda: workers_since(site, replaced) >= after.keys(), "all work", timeout=PATIENCE, every=0.1)
        assert site.service.pid == pid
    versions = {(each.pid in before, each.version) for each in site.executions() if each.began > begun}
    assert versions == {(True, 1), (False, 2)}
    assert site.rest(begun) < 10


def find_what_kills_its_worker(site: Site) -> None:
    """What the runbook says of PgschedRestartStorm: look for tasks that have failed, and then at one."""
    pid = site.service.pid
    [task_id] = site.rows.add("deadly")
    eventually(lambda: site.rows.row(task_id).status == "failed", "it has failed", timeout=PATIENCE, every=0.1)
    counted = site.type("runbook.md", "pgsched status")
    assert re.search(r"^default +deadly +0 +0 +0 +1 ", counted, re.MULTILINE)
    [listed] = re.findall(
        r"^ *(\d+) +deadly ", site.type("runbook.md", "pgsched tasks --status failed --limit 20"), re.M
    )
    shown = site.type("runbook.md", "pgsched show ID", f"pgsched show {listed}")
    assert re.search(r"^status +failed\nretries +3 of 3$", shown, re.MULTILINE)
    assert re.findall(r"^attempt +(\d)\noutcome +crashed$", shown, re.MULTILINE) == ["1", "2", "3", "4"]
    assert re.findall(r"^signal +(\d+)$", shown, re.MULTILINE) == ["11"] * 4
    assert 'File "/srv/app/tasks.py"' in shown
    eventually(lambda: len(site.service.slots()) == 3, "there are three again", timeout=PATIENCE, every=0.1)
    assert (site.service.pid, site.service.show("NRestarts")) == (pid, "0")


def stop_under_load(site: Site) -> None:
    with site.load():
        begun = now()
        eventually(lambda: began_since(site, begun) > 10, "it works", timeout=PATIENCE, every=0.1)
        site.type("systemd.md", "systemctl stop pgsched")
        assert [each for each in site.executions() if each.ended is None and each.task_id not in deadly(site)] == []
        assert site.rows.count("status = 'processing'") == 0
        assert site.rows.count("status = 'queued'") > 0
        assert site.rows.count("status = 'queued' AND retry_count > 0") == 0
    assert (site.service.show("Result"), site.service.show("ExecMainStatus")) == ("success", "0")


def every_task_was_executed_once(site: Site) -> None:
    """The ledger, once what was left has been done: what the rows say, and what was really executed."""
    site.type("systemd.md", "systemctl start pgsched")
    site.rows.all_ended(timeout=PATIENCE)
    site.type("systemd.md", "systemctl stop pgsched")
    executed: dict[int, list[bool]] = {}
    for each in site.executions():
        executed.setdefault(each.task_id, []).append(each.ended is not None)
    assert {task_id: executed.pop(task_id) for task_id in deadly(site)} == dict.fromkeys(deadly(site), [False] * 4)
    assert {task_id: ended for task_id, ended in executed.items() if ended != [True]} == {}
    assert site.rows.count("status = 'completed' AND retry_count = 0") == len(executed)
    assert site.rows.count("true") == len(executed) + 1
    assert executed.keys() == site.rows.ids("status = 'completed'")


def deadly(site: Site) -> set[int]:
    """The tasks that are executed more than once, and why: they die of it."""
    return site.rows.ids("task_type = 'deadly'")


def began_since(site: Site, moment: float) -> int:
    return sum(each.began > moment for each in site.executions())


def workers_since(site: Site, moment: float) -> set[int]:
    """The processes that have begun a task since then, as they are called inside."""
    return {each.pid for each in site.executions() if each.began > moment}


def state_of(site: Site, alert: str) -> str:
    [rule] = [rule for rule in site.watched.get("rules")["groups"][0]["rules"] if rule["name"] == alert]
    return str(rule["state"])
