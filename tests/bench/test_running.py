"""All scenarios in a row: one that fails does not stop the others, and what was measured is kept."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import running
from benchmarks.__main__ import add_scenario
from benchmarks.registry import SCENARIOS, Entry
from benchmarks.report import page, read
from benchmarks.results import document, summarise, surroundings
from benchmarks.running import Request, Session
from benchmarks.scenario import Bench, Result, Scenario, Unavailable
from benchmarks.server import Server
from pgsched.errors import UsageError


def good(bench: Bench) -> list[Result]:
    (bench.scratch / "file").touch()
    return [Result("tasks_per_s", bench.params["tasks"], "1/s"), Result("postgres_cores", None, "")]


def broken(bench: Bench) -> list[Result]:
    raise RuntimeError("no such luck")


def unavailable(bench: Bench) -> list[Result]:
    raise Unavailable("redis-server is not installed")


@pytest.fixture
def session(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    names = ("broken", "unavailable", "good", "missing")
    entries = {name: Entry(f"{__name__}:{name}", f"the {name} one") for name in names}
    monkeypatch.setattr(running, "SCENARIOS", entries)
    return Session(Server(empty_dsn), Request(repeat=2, quick=False, processes=2, params={"tasks": 7}))


def test_one_that_fails_does_not_stop_the_others(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session.measure_all(tmp_path) == ["broken", "missing"]
    told = capsys.readouterr()
    assert "broken failed: RuntimeError: no such luck" in told.err
    assert "unavailable cannot run here: redis-server is not installed" in told.err
    assert "tasks_per_s" in told.out
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


def test_what_takes_very_long_is_for_quick_runs_only(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "SCENARIOS", {"good": Entry(f"{__name__}:good", "the good one", long=True)})
    for quick, times in ((False, 0), (True, 1)):
        request = Request(repeat=1, quick=quick, processes=2, params={"tasks": 7})
        assert Session(Server(empty_dsn), request).measure_all(None) == []
        assert capsys.readouterr().out.count("tasks_per_s") == times


def test_what_is_kept_says_what_it_was_measured_on(session: Session, tmp_path: Path) -> None:
    session.measure("good", tmp_path / "good.json")
    kept = json.loads((tmp_path / "good.json").read_text())
    assert set(kept) == {"scenario", "commit", "python", "postgres", "settings", "cpus", "quick", "results"}
    assert kept["scenario"] == "good"
    assert kept["settings"]["synchronous_commit"] == "on"
    assert kept["results"] == [
        {"name": "tasks_per_s", "value": 7.0, "unit": "1/s", "min": 7.0, "max": 7.0, "runs": [7.0, 7.0]},
        {"name": "postgres_cores", "value": None, "unit": "", "min": None, "max": None, "runs": [None, None]},
    ]


@pytest.mark.parametrize("given", ["", "good.json", "new/good.json"])
def test_one_scenario_keeps_its_figures_in_a_file_or_under_its_name_in_a_directory(
    session: Session, empty_dsn: str, tmp_path: Path, given: str
) -> None:
    group = click.Group()
    add_scenario(group, "good", "the good one")
    arguments = ["good", "--dsn", empty_dsn, "--tasks", "7", "--json", str(tmp_path / given)]
    outcome = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0
    assert [path.name for path in tmp_path.rglob("*.json")] == ["good.json"]


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file as ``--json`` does."""

    def keep(scenario: str, **values: float | None) -> Path:
        results = [{"name": n, "value": v, "unit": "", "min": v, "max": v, "runs": [v]} for n, v in values.items()]
        about = {"commit": "abc", "python": "3.11", "postgres": "18", "settings": {}, "cpus": 2, "quick": False}
        path = tmp_path / f"{scenario}.json"
        path.write_text(json.dumps({"scenario": scenario, **about, "results": results}))
        return path

    return keep


def test_the_page_judges_by_the_goals(kept: Callable[..., Path]) -> None:
    drain = read(kept("drain", tasks_per_s=39_999.0, ratio_to_floor=0.5, floor_tasks_per_s=None))
    lines = page([drain], {}).splitlines()
    assert "| `drain` `tasks_per_s` | at least 40,000 | 39,999 | **missed** |" in lines
    assert "| `drain` `ratio_to_floor` | at least 0.500 | 0.500 | holds |" in lines
    assert "| `drain` `floor_tasks_per_s` | at least 80,000 | not available | not measured |" in lines
    assert "| `scale` `ratio_16_to_1` | at least 0.900 | not available | not measured |" in lines


def test_what_was_measured_elsewhere_says_so(kept: Callable[..., Path]) -> None:
    """The rest says so once, at the top."""
    here = [read(kept("drain", tasks_per_s=1.0)), read(kept("paced", poll_p50_ms=1.0))]
    other = read(kept("soak", seconds=1.0))._replace(measured_on="Measured on the moon.")
    lines = page([*here, other], {}).splitlines()
    assert lines.index(here[0].measured_on) < lines.index("## What must hold")
    assert "What was measured elsewhere says so in its own section." in lines
    assert lines.index(other.measured_on) > lines.index("## soak")
    assert sum(line.startswith("Measured on") for line in lines) == 2


def test_claims_are_compared_side_by_side(kept: Callable[..., Path]) -> None:
    claim = read(kept("claim", skip_locked_4x10_claims_per_s=5.0, ours_4x10_claims_per_s=6.0, ours_4x10_p99_ms=2.0))
    lines = page([claim], {}).splitlines()
    assert "| clients | batch | skip_locked | ours |" in lines
    assert "| 4 | 10 | 5 | 6 |" in lines
    assert "| 4 | 10 |  | 2 |" in lines


def test_what_was_watched_is_kept_point_by_point(tmp_path: Path) -> None:
    points = [(1.0, 5.0), (2.0, 6.5)]
    figures = summarise([[Result("parent_mb", 6.0, "MiB", points)], [Result("parent_mb", 7.0, "MiB")]])
    path = tmp_path / "soak.json"
    path.write_text(document("soak", surroundings("18", {}, quick=False), figures))
    assert list(map(tuple, read(path).figures["parent_mb"].series)) == points


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"results": 3}')
    with pytest.raises(UsageError, match=r"other\.json is not a file that --json has written"):
        read(path)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_there(name: str) -> None:
    scenario: Scenario = SCENARIOS[name].load()
    assert callable(scenario)
