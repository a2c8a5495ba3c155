"""README: what it says to type is typed, and its figures are those that were measured."""

import re

import pytest

from tests.pages import Reader, blocks, rows
from tests.support import ROOT

TEXT = (ROOT / "README.md").read_text()
INSTALLS = [block for block in blocks(TEXT, "sh") if block.text.startswith("python3 -m venv")]
MEASURED = {name.strip("`"): median for name, median, *_ in rows((ROOT / "docs/benchmarks/benchmarks.md").read_text())}
PEERS = ("pgsched", "procrastinate", "pgqueuer", "oban", "celery", "rq")
FIRST_SCREEN = 70


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_does_what_it_says(reader: Reader) -> None:
    """But for the two commands that install, which CI runs as they stand."""
    reader.type(". .venv/bin/activate")
    reader.follow([block for block in blocks(TEXT) if block not in INSTALLS])


def test_the_commands_that_ci_runs_are_the_first_two() -> None:
    assert [block.text for block in INSTALLS] == [block.text for block in blocks(TEXT, "sh")[:2]]
    demo, tests = (block.text.strip() for block in INSTALLS)
    assert demo.endswith(".venv/bin/pgsched demo")
    assert tests.endswith(".venv/bin/pytest -n 2")


def test_the_first_plot_is_on_the_first_screen() -> None:
    assert TEXT[: TEXT.index("![")].count("\n") <= FIRST_SCREEN


def test_the_figures_beside_others_are_those_that_were_measured() -> None:
    table = {row[0]: row[1:] for row in rows(TEXT)}
    drains, recoveries = table["tasks/s that do nothing"], table["killed worker: runs again after"]
    for peer, drain, recovery in zip(PEERS, drains, recoveries, strict=True):
        measured = MEASURED.get(f"{peer}_drain_tasks_per_s", "")
        assert drain == (f"{float(measured.replace(',', '')):,.0f}" if measured else "")
        seconds = re.match(r"([\d.]+) (ms|s)\b", recovery)
        known = MEASURED.get(f"{peer}_recovery_s", "not available")
        assert (seconds is None) is (known == "not available"), peer
        if seconds:
            assert float(seconds[1]) == pytest.approx(float(known) * (1000 if seconds[2] == "ms" else 1), rel=0.01)
