"""Dashboard and alerts on a real Prometheus that scrapes real supervisors: every query finds its series."""

import json
import re
import signal
from collections.abc import Iterator
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.monitoring.prometheus import ALERTS, DASHBOARD, Prometheus, needs_prometheus, prometheus
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.conftest import pgsched_cli as pgsched_cli  # noqa: PLC0414 - a fixture

TASKS = """
import os, signal, time
from pgsched import App, Retry

app = App()

@app.task
def busy() -> None:
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass

@app.task(retry=Retry(max=0))
def deadly() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""
ENQUEUE = """
    INSERT INTO scheduled_tasks (task_type, queue, payload, run_at, max_retries)
    SELECT %s, %s, '{}', now(), 0 FROM generate_series(1, %s)
"""


class Query(NamedTuple):
    panel: str
    expression: str
    legend: str


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def queries() -> list[Query]:
    """What the panels ask, with Grafana's variables filled in, and over as short a time as a test has."""
    filled = []
    for panel in panels():
        for target in panel.get("targets", []):
            text = (
                target["expr"].replace("$job", "pgsched").replace("$instance", ".+").replace("$__rate_interval", "30s")
            )
            text = re.sub(r"\[30m:1m\]", "[30s:1s]", text)
            assert "$" not in text
            filled.append(Query(panel["title"], text, target["legendFormat"]))
    return filled


def test_it_can_be_imported() -> None:
    """What Grafana wants of a dashboard: a data source to choose, panels with ids of their own, each in its place."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 39
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    assert "id" not in dashboard
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    for one, other in combinations((panel["gridPos"] for panel in panels()), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


def test_what_every_supervisor_tells_of_the_table_is_never_summed() -> None:
    of_the_table = re.findall(
        r"^\| `(\w+)` .*\*table:\*", (ALERTS.parents[1] / "docs/reference/metrics.md").read_text(), re.M
    )
    assert "pgsched_queue_depth" in of_the_table
    texts = [query.expression for query in queries()] + [ALERTS.read_text()]
    found = [
        text[max(0, use.start() - 60) : use.start()]
        for text in texts
        for use in re.finditer("|".join(of_the_table), text)
    ]
    aggregated = re.compile(r"max(_over_time)?(\s*by \([\w, ]+\))? ?\($|last_over_time\($|unless on \(job\) $")
    assert [before for before in found if not aggregated.search(before)] == []


@pytest.fixture
def watched(server: Server, dsn: str, pgsched_cli: CommandLine, tmp_path: Path) -> Iterator[Prometheus]:
    """Two supervisors that have work of both kinds, and a Prometheus that scrapes them. No alert waits."""
    pgsched_cli.module("watched", TASKS)
    commands = [pgsched_cli("run", "watched:app", "--processes", "2", "--reap-interval", "1") for _ in range(2)]
    addresses = [command.wait_for(r"metrics_served.*?http://([^\s\"]+)")[1] for command in commands]
    rules = re.sub(r"for: \d+m", "for: 0s", ALERTS.read_text())
    with prometheus(tmp_path, addresses, rules) as found:
        eventually(lambda: len(found.ask("pgsched_lease_remaining_seconds > 0")) == 2, "both are scraped", timeout=30)
        for task_type, queue, count in (("busy", "a", 600), ("deadly", "b", 60)):
            server.sql(ENQUEUE, task_type, queue, count, dsn=dsn)
        yield found


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_query_finds_what_a_real_run_exports(watched: Prometheus, pgsched_cli: CommandLine) -> None:
    for query in queries():
        series = eventually(lambda: watched.ask(query.expression), f"{query}", timeout=60, every=0.5)  # noqa: B023
        for label in re.findall(r"{{(\w+)}}", query.legend):
            assert all(label in each["metric"] for each in series), query
    _check_rules(watched)
    eventually(lambda: _firing(watched) == {"PgschedRestartStorm"}, "workers died in a storm", timeout=60, every=0.5)
    for alert in watched.get("alerts")["alerts"]:
        assert re.fullmatch(r"Workers of 127\.0\.0\.1:\d+ die again and again", alert["annotations"]["summary"])
        assert re.match(r"[\d.]+ in ten minutes\.", alert["annotations"]["description"])
    eventually(lambda: not watched.ask("pgsched_queue_depth > 0"), "all is done, and seen to be", timeout=60, every=0.5)
    for command in pgsched_cli.commands:
        command.signal(signal.SIGTERM)
    for command in pgsched_cli.commands:
        assert command.wait(60).code == 0
    eventually(lambda: len(watched.ask('up{job="pgsched"} == 0')) == 2, "both are seen to be gone", timeout=30)
    seen = float(watched.get("query", query="time()")["result"][1])
    eventually(lambda: _evaluated(watched) > seen, "the rules have seen it too", timeout=30, every=0.2)
    assert _firing(watched) <= {"PgschedRestartStorm"}


def _check_rules(watched: Prometheus) -> None:
    """That the server can evaluate each rule, and that there is what it asks for."""
    eventually(lambda: _evaluated(watched) > 0, "the rules are evaluated", timeout=30, every=0.2)
    rules = [rule for group in watched.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    known = set(watched.get("labels"))
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule
        selectors = re.findall(r"(?:pgsched_\w+|up)\b(?:{[^}]*})?", rule["query"])
        assert selectors
        for selector in selectors:
            eventually(lambda: watched.ask(selector), f"{selector} of {rule['name']}", timeout=60, every=0.5)  # noqa: B023
        clauses = re.findall(r"(?:by|on|group_left) ?\(([^)]*)\)", rule["query"])
        assert {label for clause in clauses for label in re.findall(r"\w+", clause)} <= known


def _evaluated(watched: Prometheus) -> float:
    """When all rules were evaluated last, Unix time."""
    [group] = watched.get("rules")["groups"]
    return datetime.fromisoformat(group["lastEvaluation"]).timestamp()


def _firing(watched: Prometheus) -> set[str]:
    alerts = watched.get("alerts")["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
