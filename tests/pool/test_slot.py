"""A slot's books, on a process that was never born: which reports count, and whom a signal may reach."""

import math
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from pgsched.model import Claim, Failure, OutcomeKind
from pgsched.pool import deaths, limits, page, records, wire
from pgsched.pool.deaths import OutOfMemory
from pgsched.pool.process import Process
from pgsched.pool.retiring import ENDED_WITHIN, MAX_TASKS, RELOADED, retire
from pgsched.pool.slot import Slot
from pgsched.pool.stream import Sink


def claim(task_id: int) -> Claim:
    return Claim(task_id, 7, "a", "default", 0, "{}", 0, 3, None, 0.0, "")


def returned(number: int) -> records.Report:
    return records.Report(number, records.RETURNED, 0, 0.1, "")


def raised(number: int) -> records.Report:
    return records.Report(number, records.RAISED, 0, 0.1, records.encode_failure(Failure(error="E")))


@pytest.fixture
def slot() -> Iterator[Slot]:
    """One whose worker was sent two tasks, numbered 1 and 2."""
    process = Process(Sink())
    slot = Slot(0)
    slot.fill(process, math.inf)
    slot.booted(0.0, 0.0)
    for task_id in (11, 12):
        slot.stage(claim(task_id), math.inf, None, 0.0, brief=True)
    assert slot.flush() == []
    yield slot
    process.close()


def sent(slot: Slot) -> list[int]:
    return [each.claim.task_id for each in slot.sent]


@pytest.mark.parametrize("numbers", [[2], [0], [1, 1], [1, 2, 3], [2, 1]])
def test_reports_that_answer_no_run_are_refused_and_no_claim_leaves(slot: Slot, numbers: list[int]) -> None:
    with pytest.raises(wire.ProtocolError):
        slot.take_reports([returned(number) for number in numbers], 0.0, 1.0, 0)
    assert sent(slot) == [11, 12]


def leave(slot: Slot, *reports: records.Report, cpu_seconds: float = 0.0) -> None:
    """Put reports into the memory that the worker shares."""
    assert slot.process is not None
    encoded = [records.encode_report(r.sequence, r.code, r.flags, r.seconds, r.body) for r in reports]
    memory = records.encode_head(cpu_seconds) + b"".join(encoded) + records.NO_RECORD
    os.pwrite(slot.process.page.descriptor, memory, page.SIZE)


def test_what_is_salvaged_is_known_when_it_comes_by_the_socket(slot: Slot) -> None:
    leave(slot, returned(1))
    assert [ended[0].task_id for ended in slot.salvage(1.0)] == [11]
    assert slot.salvage(1.0) == []
    assert [ended[0].task_id for ended in slot.take_reports([returned(1), returned(2)], 0.0, 2.0, 0)] == [12]
    assert sent(slot) == []


def test_a_failure_that_is_salvaged_has_its_cost(slot: Slot) -> None:
    leave(slot, raised(1), cpu_seconds=0.75)
    [(_, outcome)] = slot.salvage(1.0)
    assert outcome.failure is not None
    assert outcome.failure.cpu_seconds == 0.75


def test_what_was_sent_before_is_not_salvaged(slot: Slot) -> None:
    slot.take_reports([returned(1)], 0.0, 1.0, 0)
    leave(slot, returned(1))
    assert slot.salvage(2.0) == []
    assert sent(slot) == [12]


def test_an_order_does_not_judge_the_task_after_it(slot: Slot) -> None:
    slot.order_stop(OutcomeKind.TIMED_OUT, "timed out", math.inf)
    [first, second] = slot.take_reports([raised(1), raised(2)], 0.0, 1.0, 0)
    assert (first[1].kind, second[1].kind) == (OutcomeKind.TIMED_OUT, OutcomeKind.RAISED)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, that says what it is told."""
    with subprocess.Popen(
        ["cat"], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        yield process
        process.kill()


def answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether it lives: one that was killed a moment ago may be still there, and says nothing more."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"?")
    except BrokenPipeError:
        return False
    return process.stdout.read(1) == b"?"


def test_a_worker_that_was_collected_is_not_signalled(slot: Slot, bystander: subprocess.Popen[bytes]) -> None:
    process = slot.process
    assert process is not None
    # Its pid is somebody else's by now.
    process.pid, process.ended = bystander.pid, True
    process.signal(signal.SIGKILL)
    assert process.kill() == []
    process.signal(signal.SIGCONT)
    assert answers(bystander)


def test_a_pid_that_somebody_else_has_now_is_not_killed(
    bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = limits.entry(bystander.pid)
    assert found is not None
    # What was looked at had that pid before.
    seen = [found._replace(started_ticks=found.started_ticks - 1), found]
    monkeypatch.setattr(limits, "descendants", lambda pid: [bystander.pid])
    monkeypatch.setattr(limits, "entry", lambda pid: seen.pop(0))
    monkeypatch.setattr(limits, "kill_group", lambda group: None)
    assert limits.kill_tree(2**22) == [bystander.pid]
    assert answers(bystander)


@pytest.mark.parametrize(
    ("before", "now", "killed"),
    [([5, 1], [5, 1], False), ([5, 1], [6, 2], True), ([5, 1], [6, 1], None), ([-1, -1], [-1, -1], None)],
)
def test_whether_the_kernel_killed_for_memory_is_not_guessed(
    before: list[int], now: list[int], killed: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = OutOfMemory()
    counters._seen = before
    monkeypatch.setattr(counters, "_read", lambda: now)
    assert counters.killed(0.0) is killed
    assert deaths.LOST.exit_code is None


@pytest.mark.parametrize("counted", [[6, 2], [6, 1]])
def test_a_victim_that_takes_long_to_end_is_not_said_to_be_none(
    counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = OutOfMemory()
    counters._seen = [5, 1]
    monkeypatch.setattr(counters, "_read", lambda: counted)
    for now in (100.0, 101.0, 102.0):
        counters.look(now)
    assert counters.killed(102.5) is None
    assert counters.killed(200.0) is False


@pytest.mark.parametrize("worn", [MAX_TASKS, RELOADED])
def test_a_worker_that_the_kernel_cannot_end_keeps_no_other_from_being_replaced(worn: str) -> None:
    slots = [Slot(number) for number in range(2)]
    for each in slots:
        each.fill(Process(Sink()), math.inf)
        each.booted(0.0, 0.0)
        each.worn = worn
    stuck, other = slots
    # It was never born, so nothing happens to it.
    assert stuck.kill("timed_out", 100.0) == []
    stuck.kill("timed_out", 100.0 + ENDED_WITHIN)
    assert retire(slots, 100.0) == []
    assert retire(slots, 100.0 + ENDED_WITHIN) == [other]
    for each in slots:
        assert each.process is not None
        each.process.close()
