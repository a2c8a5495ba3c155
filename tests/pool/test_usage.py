"""What slots and task types are said to have used: of real workers, and in the books alone."""

import math
import signal

import pytest

from pgsched.model import Claim, Outcome, OutcomeKind
from pgsched.pool import records
from pgsched.pool.deaths import Death
from pgsched.pool.process import Process
from pgsched.pool.slot import Slot
from pgsched.pool.stream import Sink
from pgsched.pool.usage import Usage
from tests.pool.test_slot import leave


def claim(task_type: str) -> Claim:
    return Claim(1, 7, task_type, "default", 0, "{}", 0, 3, None, 0.0, "")


def ended(task_type: str, seconds: float) -> tuple[Claim, Outcome]:
    return claim(task_type), Outcome(OutcomeKind.RETURNED, seconds)


def test_types_in_one_datagram_share_its_processor_time_by_their_run_times() -> None:
    usage = Usage()
    usage.charge([ended("a", 0.1), ended("b", 0.3), ended("a", 0.1)], 1.0)
    assert usage.cpu == pytest.approx({"a": 0.4, "b": 0.6})
    usage.charge([ended("a", 0.0), ended("b", 0.0)], 1.0)
    assert usage.cpu == pytest.approx({"a": 0.9, "b": 1.1})
    usage.charge([ended("a", 0.0)], 0.5)
    assert usage.cpu == pytest.approx({"a": 1.4, "b": 1.1})
    usage.charge([], 1.0)
    assert sum(usage.cpu.values()) == pytest.approx(2.5)


def report(number: int) -> records.Report:
    return records.Report(number, records.RETURNED, 0, 0.1, "")


def test_a_slot_is_busy_from_its_first_task_to_its_last_and_pays_for_what_its_worker_used() -> None:
    usage = Usage()
    slot = Slot(3, usage)
    process = Process(Sink())
    slot.fill(process, math.inf)
    slot.booted(1.0, 0.5)
    for _ in range(2):
        slot.stage(claim("a"), math.inf, None, 10.0, brief=True)
    assert slot.flush() == []
    assert slot.meter.busy_seconds(12.0, at_work=True) == 2.0
    # The worker has taken its tickets.
    process.take_back()
    slot.take_reports([report(1)], 1.5, 13.0, 0)
    assert usage.cpu == {"a": 1.0}, "what the boot used is no task's"
    assert slot.meter.busy_seconds(14.0, at_work=True) == 4.0
    slot.take_reports([report(2)], 1.75, 15.0, 0)
    assert slot.meter.busy_seconds(99.0, at_work=False) == 5.0
    slot.stage(claim("b"), math.inf, None, 20.0, brief=True)
    assert slot.flush() == []
    process.take_back()
    slot.vacate(Death(None, signal.SIGKILL, 3.75, 0), 22.0, None)
    assert slot.meter.busy_seconds(99.0, at_work=False) == 7.0
    assert usage.cpu == {"a": 1.25, "b": 2.0}


@pytest.mark.parametrize("end", ["by the socket", "with the next one", "at rest", "under the next one"])
def test_what_is_salvaged_is_charged_as_soon_as_its_cost_is_known(end: str) -> None:
    usage = Usage()
    slot = Slot(0, usage)
    process = Process(Sink())
    slot.fill(process, math.inf)
    slot.booted(0.0, 0.5)
    for task_type in ("a", "b") if "next" in end else ("a",):
        slot.stage(claim(task_type), math.inf, None, 10.0, brief=True)
    assert slot.flush() == []
    process.take_back()
    leave(slot, report(1))
    assert len(slot.salvage(10.1)) == 1
    assert usage.cpu == {}
    if end == "by the socket":
        slot.take_reports([report(1)], 2.5, 11.0, 0)
    elif end == "with the next one":
        slot.take_reports([report(1), report(2)], 2.5, 11.0, 0)
    if slot.process is process:
        slot.vacate(Death(None, signal.SIGKILL, 2.5, 0), 10.2, None)
    assert usage.cpu == pytest.approx({"a": 1.0, "b": 1.0} if "next" in end else {"a": 2.0})


def test_a_slot_that_has_its_tasks_taken_back_was_not_at_work() -> None:
    slot = Slot(0)
    process = Process(Sink())
    slot.fill(process, math.inf)
    slot.booted(0.0, 0.0)
    slot.stage(claim("a"), math.inf, None, 10.0, brief=True)
    assert slot.flush() == []
    assert len(slot.take_back()) == 1
    assert slot.meter.busy_seconds(99.0, at_work=slot.running is not None) == 0.0
    process.close()
