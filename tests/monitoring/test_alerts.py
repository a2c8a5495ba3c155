"""The alerts, by promtool: on synthetic series each fires when it must and only then, and these tests can fail."""

import re
from pathlib import Path

import pytest

from tests.monitoring.prometheus import ALERTS, MONITORING, needs_promtool, promtool
from tests.support import ROOT

SERIES = ROOT / "tests/monitoring/alerts_test.yml"
NAMES = re.findall(r"- alert: (\w+)", ALERTS.read_text())

WEAKENED = {
    "idle slots": ('and on (job) sum by (job) (pgsched_slots{state="idle"}) > 0', ""),
    "claims of the others": ("sum by (job) (increase(pgsched_claimed_total[5m])) == 0", "pgsched_claimed_total"),
    "what is due but fresh": ("(pgsched_oldest_due_seconds) > 120", "(pgsched_oldest_due_seconds) > 0"),
    "the time of a restart": ("for: 10m", "for: 1m"),
    "nothing left to do": (") > 0\n            unless on (job) max", ") >= 0\n            unless on (job) max"),
    "the other supervisor is up": ('unless on (job) max by (job) (up{job="pgsched"}) == 1', ""),
    "a target that was taken out": (' and on (job, instance) up{job="pgsched"} == 0', ""),
    "a steady backlog": ("[15m:1m]) > 0\n", "[15m:1m]) >= 0\n"),
    "a burst": ("for: 30m", "for: 10m"),
    "a young backlog": ("(pgsched_oldest_due_seconds) > 300", "(pgsched_oldest_due_seconds) > 0"),
    "beyond what is counted": ("or max by (job, task_type) (pgsched_due_tasks) >= 100000", ""),
    "one late renewal": ("(increase(pgsched_late_renewals_total[15m])) >= 2", "(pgsched_late_renewals_total) >= 1"),
    "an old loss": ("(increase(pgsched_leases_lost_total[15m])) > 0", "(pgsched_leases_lost_total) > 0"),
    "no lease for a moment": ("for: 1m\n", "for: 0m\n"),
    "planned restarts": ('{reason=~"crashed|idle|boot|boot_timeout|protocol|over_memory"}', ""),
    "few restarts": (") > 20", ") > 2"),
    "old fenced writes": ("(increase(pgsched_fenced_total[15m])) > 0", "(pgsched_fenced_total) > 0"),
    "one reaper is enough": ("time() - max by (job) (", "time() - min by (job) ("),
    "a reaper that never was": ("unless on (job) pgsched_reaper_last", "and on (job) pgsched_reaper_last"),
    "a short snapshot": ("(pgsched_oldest_snapshot_seconds) > 3600", "(pgsched_oldest_snapshot_seconds) > 0"),
    "few transactions": ("> 1e6", "> 1e5"),
    "the sum of two supervisors": ("(max by (job, table)", "(sum by (job, table)"),
    "much work": (
        "+ 1200 * sum by (job) (rate(pgsched_settled_total[30m]))",
        "+ sum by (job) (pgsched_settled_total) * 0",
    ),
    "a table at rest": ("(100000 + 1200", "(1200"),
    "ended tasks": ('{table="scheduled_tasks_live"}', ""),
}
"""What an alert must not mistake, and the change to its rule by which it would."""


@needs_promtool
def test_the_files_are_well_formed() -> None:
    for command, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        content, said = promtool("check", command, str(MONITORING / name))
        assert content, said


@needs_promtool
def test_each_alert_fires_when_it_must_and_only_then() -> None:
    content, said = promtool("test", "rules", str(SERIES))
    assert content, said


def broken(directory: Path, rules: str) -> bool:
    """Whether the tests of the series find fault with these rules."""
    (directory / "alerts.yml").write_text(rules)
    (directory / "series.yml").write_text(SERIES.read_text().replace("../../monitoring/alerts.yml", "alerts.yml"))
    return not promtool("test", "rules", str(directory / "series.yml"))[0]


@needs_promtool
@pytest.mark.parametrize("what", WEAKENED)
def test_an_alert_that_fires_for_nothing_is_found_out(what: str, tmp_path: Path) -> None:
    right, wrong = WEAKENED[what]
    rules = ALERTS.read_text()
    assert rules.count(right) == 1
    assert broken(tmp_path, rules.replace(right, wrong))


@pytest.mark.parametrize("name", NAMES)
def test_each_alert_says_what_to_do(name: str) -> None:
    rule = ALERTS.read_text().split(f"- alert: {name}\n")[1].split("- alert:")[0]
    assert re.search(r"severity: (critical|warning)\n", rule)
    assert re.search(r"^ +summary: .+$", rule, re.MULTILINE)
    assert re.search(r"^ +description: .+$", rule, re.MULTILINE)
    page = (ROOT / "docs/runbook.md").read_text()
    assert f"runbook_url: docs/runbook.md#{name.lower()}\n" in rule
    assert f"\n## {name}\n" in page
    assert set(re.findall(r"^## (Pgsched\w+)$", page, re.MULTILINE)) == set(NAMES)
