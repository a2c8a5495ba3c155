"""Moments that several processes note in one file."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import stamps
from benchmarks.burning import Burned, burned, span
from tests.support import ROOT

NOTE = """
import sys
from benchmarks.stamps import note
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 200):
    note(sys.argv[1], number, number * 10**15, 7)
"""


def test_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    writers = [
        subprocess.Popen([sys.executable, "-c", NOTE, str(path), str(turn * 1000)], cwd=ROOT) for turn in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    expected = [(number, number * 10**15, 7) for turn in range(3) for number in range(turn * 1000, turn * 1000 + 200)]
    assert sorted(stamps.read(path)) == expected
    assert stamps.count(path) == 600


def test_nothing_was_noted_yet(tmp_path: Path) -> None:
    assert stamps.read(tmp_path / "none") == []
    assert stamps.count(tmp_path / "none") == 0


def test_runs_come_in_the_order_in_which_they_were_queued(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("2 2000000000 5000000000 1000000000\n1 3000000000 4000000000 500000000\n")
    runs = burned(tmp_path / "runs")
    assert runs == [Burned(3.0, 4.0, 0.5), Burned(2.0, 5.0, 1.0)]
    assert span(runs) == 3.0


def test_a_task_that_ran_twice_spoils_the_run(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("1 1 2 1\n1 3 4 1\n")
    with pytest.raises(RuntimeError, match="more than once"):
        burned(tmp_path / "runs")
