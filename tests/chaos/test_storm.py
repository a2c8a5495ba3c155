"""A short storm, and one over a pgsched that was broken on purpose, which the ledger has to notice."""

import os
import random
import shutil
from pathlib import Path

import pytest

from pgsched.model import OutcomeKind
from tests.chaos.__main__ import LEASE, described
from tests.chaos.forces import WORK
from tests.chaos.plan import Fault, Harm, Kind, Order, Plan, draw
from tests.chaos.record import executions
from tests.chaos.storm import CALM, Report, Storm, run
from tests.chaos.terms import RANGES, SOON, SeatTerms, Terms
from tests.support import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PGSCHED_TEST_DSN" in os.environ, reason="a storm has a server of its own"),
]
TERMS = Terms(4, (SeatTerms((0, 1), kept=SOON), SeatTerms(pooled=True, kept=RANGES), SeatTerms((1, 2, 3), pooled=True)))
"""Something of everything, where a longer storm has what its seed draws."""
FENCES = {"settle.sql": 2, "settle_completed.sql": 1}
FENCE = "AND task.fence = verdict.fence"


@pytest.mark.timeout(300)
def test_a_minute_of_storm_violates_nothing(dice: random.Random) -> None:
    report = run(draw(dice.randrange(2**31), 45.0, LEASE)._replace(terms=TERMS))
    print(described(report))
    assert not report.violations, described(report)
    # The drain has made all of it end; nothing of a storm that did nothing would be worth it.
    assert report.figures["executions"] > 100
    assert sum(report.figures["harms"].values()) > 10
    made, dropped = report.figures["old ranges made and dropped"]
    assert 0 < dropped <= made


class LateSettle(Storm):
    """Not by chance: what a supervisor writes of a crash is held back until it runs the same task again."""

    def _blow(self) -> None:
        seat = self._seats[0]
        self._queue(Order(0.0, Kind.NAP, 1, 6000, seat.queue, 0, 0.0, 8, None, None))
        self._wait(lambda: len(executions(self._journal)) == 1, CALM, "the task runs")
        [first] = executions(self._journal)
        # Under the same lease: it gives up, connects anew and writes it, while the first one still lies in the relay.
        seat.proxy.hold(WORK, saying=OutcomeKind.CRASHED.encode())
        workers = [worker.pid for worker in seat.workers()]
        choice = (workers.index(first.pid) + 0.5) / len(workers)
        self._harm(Fault(0.0, Harm.KILL_WORKER, seat.number, 0.0, choice))
        again = "SELECT count(*) FROM scheduled_tasks_live WHERE status = 'processing' AND fence = 2"
        self._wait(lambda: self._ask(again) == 1, CALM, "the task runs again")
        seat.proxy.pass_on()


def late_settle(package: Path | None = None) -> Report:
    report = run(Plan(0, 0.0, LEASE, (), ()), package=package, kind=LateSettle)
    print(described(report))
    return report


@pytest.mark.timeout(300)
def test_a_settle_that_comes_late_changes_nothing() -> None:
    report = late_settle()
    assert not report.violations
    assert report.figures["tasks executed more than once"] == 1


@pytest.mark.timeout(300)
def test_a_settle_that_compares_no_fence_is_caught(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pgsched", tmp_path / "pgsched")
    for name, times in FENCES.items():
        path = tmp_path / "pgsched/store/sql" / name
        text = path.read_text()
        assert text.count(FENCE) == times
        path.write_text(text.replace(FENCE, ""))
    report = late_settle(tmp_path)
    assert {"failure record", "unexplained failure", "illegal transition"} & {v.what for v in report.violations}
