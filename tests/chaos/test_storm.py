"""A short storm, and one over a pgsched that was broken on purpose, which the ledger has to notice."""

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.chaos.__main__ import LEASE, described
from tests.chaos.plan import SEATS, Fault, Harm, Kind, Order, Plan, draw
from tests.chaos.storm import run
from tests.support import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PGSCHED_TEST_DSN" in os.environ, reason="a storm has a server of its own"),
]
FENCES = {"settle.sql": 2, "settle_completed.sql": 1}
FENCE = "AND task.fence = verdict.fence"


@pytest.mark.timeout(300)
def test_a_minute_of_storm_violates_nothing(dice: random.Random) -> None:
    report = run(draw(dice.randrange(2**31), 45.0, LEASE))
    print(described(report))
    assert not report.violations, described(report)
    # The drain has made all of it end; nothing of a storm that did nothing would be worth it.
    assert report.figures["executions"] > 100
    assert sum(report.figures["harms"].values()) > 10


@pytest.mark.timeout(300)
def test_a_settle_that_compares_no_fence_is_caught(tmp_path: Path) -> None:
    """What is delivered late meets the next attempt of the same task, under the same supervisor and lease."""
    shutil.copytree(ROOT / "pgsched", tmp_path / "pgsched")
    for name, times in FENCES.items():
        path = tmp_path / "pgsched/store/sql" / name
        text = path.read_text()
        assert text.count(FENCE) == times
        path.write_text(text.replace(FENCE, ""))
    # Each supervisor has tasks of its own, is seldom idle and never behind: a task is soon tried again by the same one.
    orders = tuple(
        Order(float(at), Kind.FLAKY, 1, 8, f"only-{seat}", 0, 0.0, 8, None, None)
        for at in range(0, 40, 3)
        for seat in range(SEATS)
    )
    faults = tuple(
        Fault(3.0 + 4 * turn + seat / 2, Harm.DELAY, seat, 2.2 + turn % 4 / 10, 0.0)
        for turn in range(8)
        for seat in range(SEATS)
    )
    report = run(Plan(0, 40.0, LEASE, faults, orders), package=tmp_path)
    print(described(report))
    assert {"failure record", "unexplained failure", "illegal transition"} & {v.what for v in report.violations}
