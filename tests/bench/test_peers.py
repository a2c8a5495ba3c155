"""The comparison with other queues where something is missing, and what it leaves behind."""

import os
import sys
from pathlib import Path
from typing import cast

import pytest

from benchmarks import stamps
from benchmarks.peers import comparison, work
from benchmarks.peers.comparison import CANDIDATES, Candidate
from benchmarks.peers.measures import Measures
from benchmarks.peers.peer import Peer, processes
from benchmarks.peers.place import DIRECTORY, Place
from benchmarks.scenario import Bench, Result
from tests.support import eventually, gone

CELERY, RQ = (candidate for candidate in CANDIDATES if candidate.redis)


def run(monkeypatch: pytest.MonkeyPatch, *candidates: Candidate) -> dict[str, Result]:
    """The scenario with these peers only, none of which gets as far as to use its server."""
    monkeypatch.setattr(comparison, "CANDIDATES", candidates)
    monkeypatch.setattr(comparison, "OURS", candidates[0])
    bench = cast(Bench, type("Without", (), {"quick": True, "progress": print}))
    return {result.name: result for result in comparison.peers(bench)}


def test_a_library_that_is_not_installed_costs_its_figures_and_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    monkeypatch.delitem(sys.modules, "benchmarks.peers.with_celery", raising=False)
    results = run(monkeypatch, CELERY)
    assert len(results) == len(comparison.UNITS)
    assert {result.value for result in results.values()} == {None}
    assert capsys.readouterr().err == (
        "peers: celery: not measured, celery is not installed; pip install -e '.[peers]'\n"
    )


def test_a_mistake_in_an_adapter_is_no_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="with_nothing"):
        run(monkeypatch, Candidate("nothing", "with_nothing", "Nothing", redis=False))


def test_without_redis_its_peers_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("celery", "rq"):
        monkeypatch.setitem(sys.modules, f"benchmarks.peers.with_{name}", type(sys)("there"))
    monkeypatch.setenv("PATH", str(tmp_path))
    results = run(monkeypatch, CELERY, RQ)
    assert results["drain_vs_rq"].value is None
    assert capsys.readouterr().err.count("redis-server is not installed") == 2


def test_a_ratio_is_ours_by_theirs() -> None:
    ours: comparison.Figures = {"drain_tasks_per_s": 40.0, "pickup_p50_ms": 1.0, "cpu_tasks_per_s": 90.0}
    theirs: comparison.Figures = {"drain_tasks_per_s": 10.0, "pickup_p50_ms": 2.0, "cpu_tasks_per_s": None}
    ratios = {result.name: result.value for result in comparison._ratios({"pgsched": ours, "other": theirs})}
    assert ratios == {"drain_vs_other": 4.0, "latency_vs_other": 0.5, "cpu_vs_other": None}


def test_workers_and_what_they_started_are_gone_afterwards(tmp_path: Path) -> None:
    # With -m what runs in the background has a process group of its own.
    command = ["/bin/sh", "-mc", f"sleep 60 & echo $! > {tmp_path}/below; echo $$ > {tmp_path}/worker; wait"]
    with processes([command], {}, tmp_path / "log") as check:
        eventually(lambda: _text(tmp_path / "worker"))
        pids = [int(_text(tmp_path / name)) for name in ("below", "worker")]
        check()
    eventually(lambda: all(gone(pid) for pid in pids))


def test_a_worker_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        processes([["/bin/sh", "-c", "echo no such option; exit 3"]], {}, tmp_path / "log") as check,
        pytest.raises(RuntimeError, match="code 3: no such option"),
    ):
        eventually(check)


def test_a_task_whose_process_is_killed_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setattr(os, "kill", lambda pid, _: stamps.note(str(tmp_path / work.LINGERED), pid, stamps.now()))
    assert Measures(_Lingering(tmp_path), lambda: None).recovery(5.0) == pytest.approx(0.0, abs=0.5)


def test_a_task_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "kill", lambda *_: None)
    assert Measures(_Lingering(tmp_path), lambda: None).recovery(0.05) is None


class _Lingering(Peer):
    """Starts the task that lingers at once, in no process."""

    def __init__(self, directory: Path) -> None:
        self.place = cast(Place, type("Here", (), {"directory": directory}))

    def prepare(self) -> None: ...

    def enqueue(self, name: str, count: int) -> None: ...

    def enqueue_one(self, name: str) -> None:
        stamps.note(str(self.place.directory / work.LINGERED), os.getpid(), stamps.now())

    def busy(self) -> bool:
        return False

    def commands(self, short: bool) -> list[list[str]]:
        return []

    def close(self) -> None: ...


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
