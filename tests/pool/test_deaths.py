"""A worker may die at any step of its conversation with the parent: each claim it had has exactly one outcome.

The steps are held by stopping the worker (SIGSTOP) or the parent's loop, not by waiting and hoping.
"""

import functools
import json
import math
import os
import random
import select
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from pgsched.model import Claim, Outcome, OutcomeKind
from pgsched.pool.deaths import LOST
from pgsched.pool.slot import Slot
from tests.pool.conftest import Harness, app_in, pooled
from tests.support import eventually, eventually_async, gone, process, processes

METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])
SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: (found := process(pid)) is not None and found.state == "T", "the worker to stop")


def kill(pid: int, number: signal.Signals) -> None:
    """Send a deadly signal; a stopped process takes it when it is continued, before it does anything else."""
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)


async def refilled(harness: Harness, pid: int) -> None:
    """The slot of the dead worker is filled, and works."""
    await harness.free()
    assert harness.worker() != pid
    assert await harness.value("add", '{"a": 1}') == "2"


def crash(number: int) -> str:
    return f"killed by signal {number} ({signal.Signals(number).name})"


@METHODS
@SIGNALS
async def test_while_it_boots(method: str, number: signal.Signals, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source = f"""
import os, time
app = App()
@app.task
def add(a: int, b: int = 1) -> int:
    return a + b
def recorder(slot: int) -> None:
    while not os.path.exists({str(gate)!r}):
        time.sleep(0.002)
"""
    harness = app_in(tmp_path, source, start_method=method, recorder="written:recorder")
    gate.touch()
    await harness.pool.start()
    gate.unlink()
    os.kill(harness.worker(), signal.SIGKILL)
    await eventually_async(lambda: harness.pool.slots()["booting"] == 1 and harness.workers())
    booting = harness.worker()
    kill(booting, number)
    await eventually_async(lambda: harness.died(2))
    gate.touch()
    await refilled(harness, booting)
    await harness.pool.stop()
    assert harness.pool.restarts == {"idle": 1, "boot": 1, "stopped": 1}


@METHODS
@SIGNALS
async def test_while_it_is_idle(method: str, number: signal.Signals) -> None:
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        kill(pid, number)
        await eventually_async(lambda: harness.pool.restarts["idle"] == 1)
        await refilled(harness, pid)
        assert harness.said("worker_ended")[0]["end"] == crash(number)


@METHODS
@SIGNALS
async def test_with_a_task_that_it_has_not_taken(method: str, number: signal.Signals) -> None:
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        stop(pid)
        waiting = [harness.start("add", '{"a": 1}', ahead=3) for _ in range(3)]
        kill(pid, number)
        for task_id in waiting:
            outcome = await harness.outcome(task_id)
            assert (outcome.kind, outcome.seconds, outcome.failure) == (OutcomeKind.INTERRUPTED, 0.0, None)
        await refilled(harness, pid)


@METHODS
@SIGNALS
async def test_with_a_task_that_runs_and_others_that_wait(method: str, number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        running = harness.start("wait_for", json.dumps({"path": str(tmp_path / "never"), "mark": str(mark)}))
        waiting = [harness.start("add", '{"a": 1}', ahead=3) for _ in range(3)]
        await eventually_async(mark.exists)
        kill(pid, number)
        outcome = await harness.outcome(running)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.failure is not None
        assert outcome.failure.error == crash(number)
        assert outcome.failure.signal == number
        assert outcome.seconds > 0
        for task_id in waiting:
            assert (await harness.outcome(task_id))[:2] == (OutcomeKind.INTERRUPTED, 0.0)
        await refilled(harness, pid)
        assert harness.pool.restarts == {"crashed": 1}


@METHODS
@SIGNALS
async def test_in_the_middle_of_a_report(method: str, number: signal.Signals) -> None:
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        # Several times what the socket holds: the worker waits for room, because the loop does not run here.
        task = harness.start("text", json.dumps({"size": 1_000_000}))
        waiting = harness.start("add", '{"a": 1}', ahead=1)
        eventually(lambda: "sock" in Path(f"/proc/{pid}/wchan").read_text(), "the worker to wait for room")
        kill(pid, number)
        eventually(lambda: gone(pid))
        outcome = await harness.outcome(task)
        assert outcome.kind is OutcomeKind.CRASHED
        assert (await harness.outcome(waiting))[:2] == (OutcomeKind.INTERRUPTED, 0.0)
        await refilled(harness, pid)


@METHODS
@SIGNALS
async def test_after_a_report_that_nobody_has_read(method: str, number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        task = harness.start("add", '{"a": 41}')
        following = harness.start("wait_for", json.dumps({"path": str(tmp_path / "never"), "mark": str(mark)}), ahead=1)
        # It runs the next task, so it has sent the first one's report.
        eventually(mark.exists)
        kill(pid, number)
        eventually(lambda: gone(pid))
        outcome = await harness.outcome(task)
        assert (outcome.kind, outcome.result) == (OutcomeKind.RETURNED, "42")
        assert (await harness.outcome(following)).kind is OutcomeKind.CRASHED
        await refilled(harness, pid)


async def test_with_more_reports_unread_than_are_read_at_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled() as harness:
        pid = harness.worker()
        early = [harness.start("noop", ahead=200) for _ in range(150)]
        last = harness.start("wait_for", json.dumps({"path": str(tmp_path / "never"), "mark": str(mark)}), ahead=200)
        # The loop does not run here, so nobody reads.
        eventually(mark.exists)
        kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        refused = 0

        def react(_claim: Claim, _outcome: Outcome) -> None:
            nonlocal refused
            refused += not harness.dispatch(harness.claim("noop"), 1)

        harness.react = react
        assert (await harness.outcome(last)).kind is OutcomeKind.CRASHED
        for task_id in early:
            assert harness.outcomes[task_id].kind is OutcomeKind.RETURNED
        harness.react = lambda claim, outcome: None
        await refilled(harness, pid)
        # What its last reports were answered with before its death was known came back, and had not begun.
        back = [outcome for outcome in harness.outcomes.values() if outcome.kind is OutcomeKind.INTERRUPTED]
        assert not any(outcome.seconds for outcome in back)
        assert refused > 0


async def test_reports_that_the_worker_has_not_sent_yet_outlive_it(tmp_path: Path) -> None:
    """Reports of tiny tasks travel together; those that wait in the worker's memory count all the same."""
    done, mark = tmp_path / "done", tmp_path / "mark"
    async with pooled() as harness:
        before = [harness.start("echo", f'{{"value": {number}}}', ahead=9) for number in range(4)]
        last = harness.start("wait_for", json.dumps({"path": str(done), "mark": str(mark)}), ahead=9)
        eventually(mark.exists)
        os.kill(harness.pool.running()[0].pid or 0, signal.SIGKILL)
        assert (await harness.outcome(last)).kind is OutcomeKind.CRASHED
        assert [harness.outcomes[each].result for each in before] == ["0", "1", "2", "3"]


def start_together(harness: Harness, *claims: tuple[Claim, bool]) -> Slot:
    """Start tasks in one frame, so that the worker has the ticket of the next when one ends; whether each is brief."""
    slot = harness.pool._workers.slots[0]
    for claim, brief in claims:
        slot.stage(claim, math.inf, None, time.monotonic(), brief=brief)
        harness.dispatched[claim.task_id] = claim
    assert slot.flush() == []
    return slot


async def test_reports_do_not_wait_behind_a_task_that_turns_out_long(tmp_path: Path) -> None:
    done, mark = tmp_path / "done", tmp_path / "mark"
    async with pooled() as harness:
        first = harness.claim("echo", '{"value": "é"}')
        last = harness.claim("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))
        start_together(harness, (first, True), (last, True))
        eventually(mark.exists)
        harness.pool.turn()
        assert harness.outcomes[first.task_id].result == '"é"'
        assert [running.claim.task_id for running in harness.pool.running()] == [last.task_id]
        done.touch()
        assert (await harness.outcome(last.task_id)).kind is OutcomeKind.RETURNED


async def test_a_report_does_not_wait_behind_a_task_that_is_not_brief(tmp_path: Path) -> None:
    """Nobody knows how long that one takes."""
    done, mark = tmp_path / "done", tmp_path / "mark"
    async with pooled() as harness:
        first = harness.claim("noop")
        last = harness.claim("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))
        slot = start_together(harness, (first, True), (last, False))
        eventually(mark.exists)
        assert slot.process is not None
        sock = slot.process.sock
        eventually(lambda: select.select([sock], [], [], 0)[0], "the first one's report")
        done.touch()
        assert (await harness.outcome(first.task_id)).kind is OutcomeKind.RETURNED
        assert (await harness.outcome(last.task_id)).kind is OutcomeKind.RETURNED


async def test_a_worker_whose_end_and_last_report_come_together() -> None:
    """Its report counts, and whoever hears of it sends the dead worker nothing."""
    async with pooled() as harness:
        pid = harness.worker()
        task = harness.start("add", '{"a": 41}')
        process = harness.pool._workers.slots[0].process
        assert process is not None
        eventually(lambda: select.select([process.sock], [], [], 0)[0], "the report")
        kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        answered: list[bool] = []
        harness.react = lambda claim, outcome: answered.append(harness.dispatch(harness.claim("noop"), 1))
        # The loop has not run: this turn finds both.
        harness.pool.turn()
        assert harness.outcomes[task].result == "42"
        assert answered == [False]
        harness.react = lambda claim, outcome: None
        await refilled(harness, pid)


async def test_an_end_that_is_told_twice_counts_once() -> None:
    async with pooled() as harness:
        pid = harness.worker()
        workers = harness.pool._workers
        slot, process = workers.slots[0], workers.slots[0].process
        assert process is not None
        kill(pid, signal.SIGKILL)
        await eventually_async(lambda: harness.died(1))
        await refilled(harness, pid)
        workers.died(slot, process, LOST)
        assert harness.pool.restarts == {"idle": 1}
        assert await harness.value("add", '{"a": 1}') == "2"


async def test_with_more_frames_unread_than_are_read_at_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled() as harness:
        pid = harness.worker()
        slot = harness.pool._workers.slots[0]
        early = []
        for _ in range(150):
            # Each of them sends the report before it by itself.
            claim = harness.claim("noop")
            slot.stage(claim, math.inf, None, time.monotonic(), brief=False)
            harness.dispatched[claim.task_id] = claim
            early.append(claim.task_id)
        assert slot.flush() == []
        last = harness.start("wait_for", json.dumps({"path": str(tmp_path / "never"), "mark": str(mark)}), ahead=200)
        eventually(mark.exists)
        kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        assert (await harness.outcome(last)).kind is OutcomeKind.CRASHED
        assert {harness.outcomes[task_id].kind for task_id in early} == {OutcomeKind.RETURNED}
        await refilled(harness, pid)


async def test_the_last_words_of_a_task_sent_ahead_are_kept() -> None:
    async with pooled() as harness:
        pid = harness.worker()
        first = harness.start("noop")
        second = harness.start("die", '{"number": 9, "words": "goodbye"}', ahead=1)
        # The loop does not run here: the parent learns of both ends, and of the words, at once.
        eventually(lambda: gone(pid))
        assert (await harness.outcome(first)).kind is OutcomeKind.RETURNED
        failure = (await harness.outcome(second)).failure
        assert failure is not None
        assert failure.stderr == "goodbye\n"


@METHODS
async def test_while_it_is_asked_to_leave(method: str) -> None:
    async with pooled(start_method=method) as harness:
        pid = harness.worker()
        stop(pid)
        await harness.reload()
        assert harness.pool.slots()["stopping"] == 1
        kill(pid, signal.SIGKILL)
        await refilled(harness, pid)
        assert harness.pool.restarts == {"reloaded": 1}


@METHODS
@SIGNALS
async def test_in_its_grace_period(method: str, number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled(start_method=method, grace=30.0) as harness:
        pid = harness.worker()
        task = harness.start("stubborn", json.dumps({"mark": str(mark)}))
        await eventually_async(mark.exists)
        harness.pool.stop_task(task, OutcomeKind.CANCELLED, "cancelled by the test")
        assert harness.pool.slots()["killing"] == 1
        kill(pid, number)
        outcome = await harness.outcome(task)
        assert outcome.kind is OutcomeKind.CANCELLED
        assert outcome.failure is not None
        assert outcome.failure.error == "cancelled by the test"
        await refilled(harness, pid)


async def test_a_death_at_a_random_moment(dice: random.Random) -> None:
    """Whatever the moment: one outcome per claim, and a result where there was a report."""
    async with pooled(processes=2) as harness:
        total = 3000

        def feed() -> None:
            while len(harness.dispatched) < total and harness.dispatch(harness.claim("add", '{"a": 1}'), 16):
                pass

        def past(moment: int) -> bool:
            feed()
            return len(harness.outcomes) >= moment and bool(harness.workers())

        harness.react = lambda claim, outcome: feed()
        for moment in sorted(dice.sample(range(total - 200), 25)):
            await eventually_async(functools.partial(past, moment), every=0.0002)
            os.kill(dice.choice(harness.workers()), signal.SIGKILL)
        await eventually_async(lambda: past(total) and len(harness.outcomes) == len(harness.dispatched))
        kinds = Counter(outcome.kind for outcome in harness.outcomes.values())
        assert set(kinds) <= {OutcomeKind.RETURNED, OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED}
        assert kinds[OutcomeKind.CRASHED] == harness.pool.restarts["crashed"] <= 25
        assert kinds[OutcomeKind.INTERRUPTED] <= 25 * 17


@pytest.mark.parametrize(
    ("task_type", "payload", "error"),
    [
        ("die", '{"number": 11}', "killed by signal 11 (SIGSEGV)"),
        ("die", '{"number": 9}', "killed by signal 9 (SIGKILL)"),
        ("die", '{"number": 15}', "killed by signal 15 (SIGTERM)"),
        ("abort", "{}", "killed by signal 6 (SIGABRT)"),
        ("leave", '{"how": "_exit_7"}', "exited with code 7 during the task"),
        ("overflow", "{}", "killed by signal 11 (SIGSEGV)"),
    ],
)
async def test_f25_how_it_died_is_told(task_type: str, payload: str, error: str) -> None:
    async with pooled() as harness:
        pid = harness.worker()
        outcome = await harness.run(task_type, payload, timeout=20)
        assert outcome.kind is OutcomeKind.CRASHED
        failure = outcome.failure
        assert failure is not None
        assert failure.error == error
        assert failure.out_of_memory is False
        assert (failure.peak_memory or 0) > 4 * 1024 * 1024
        (ended,) = harness.said("worker_ended")
        assert ended["task_type"] == task_type
        assert ended["pid"] == pid
        assert ended["reason"] == "crashed"
        assert failure.error.startswith(ended["end"])


async def test_f25_no_memory_is_told() -> None:
    async with pooled() as harness:
        outcome = await harness.run("exhaust_address_space")
        assert outcome.kind is OutcomeKind.RAISED
        assert outcome.failure is not None
        assert outcome.failure.error == "MemoryError"
        assert outcome.failure.out_of_memory is True


async def test_a_crash_keeps_its_last_words_and_a_segfault_its_python_stack() -> None:
    async with pooled() as harness:
        await harness.value("say", '{"words": "from the one before"}')
        outcome = await harness.run("die", '{"number": 9, "words": "goodbye"}')
        assert outcome.failure is not None
        assert outcome.failure.stderr == "goodbye\n"
        outcome = await harness.run("abort")
        assert outcome.failure is not None
        assert "tests/pool/tasks.py" in (outcome.failure.stderr or "")


async def test_f01_large_payloads_and_workers_that_die_at_once() -> None:
    async with pooled(processes=2) as harness:
        filler = "x" * (2 * 1024 * 1024)
        for number in range(20):
            await harness.free(timeout=20)
            if number % 3:
                harness.start("nap", '{"seconds": 0.05}')
            else:
                # An argument that does not fit fails; one that fits and is large arrives at a worker that dies.
                harness.start("echo", json.dumps({"value": filler}))
                os.kill(next(iter(r.pid for r in harness.pool.running() if r.pid)), signal.SIGKILL)
        await eventually_async(lambda: len(harness.outcomes) == 20, timeout=20)
        await harness.free(2)


async def test_f09_f22_many_deaths_leave_no_zombie_and_no_descriptor() -> None:
    async with pooled(processes=4) as harness:
        await harness.run("leave", '{"how": "_exit_7"}')
        await harness.free(4)
        before = len(os.listdir("/proc/self/fd"))
        names = names_in_shared_memory()
        for _ in range(50):
            await harness.free()
            harness.start("die", '{"number": 9}')
            # No slot has another worker before its last one is collected.
            assert sum(found.dead for found in processes() if found.parent == os.getpid()) <= 4
        await harness.free(4)
        assert len(os.listdir("/proc/self/fd")) == before
        # Others who use the machine may have some just now.
        await eventually_async(lambda: names_in_shared_memory() <= names, "no name is left")
        assert harness.pool.restarts["crashed"] == 51


def names_in_shared_memory() -> set[str]:
    """Those that multiprocessing gives to semaphores and blocks; not what a server or a pooler has there."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("sem.mp-", "psm_"))}


async def test_f04_idle_workers_killed_by_hand_are_replaced_and_counted() -> None:
    for count in (1, 4):
        async with pooled(processes=count) as harness:
            for pid in harness.workers():
                os.kill(pid, signal.SIGKILL)
            await eventually_async(functools.partial(harness.died, count))
            await harness.free(count)
            for _ in range(10):
                await harness.value("add", '{"a": 1}')
            assert harness.pool.restarts.total() == count


@METHODS
@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("task_type", ["close_everything", "seize_everything"])
async def test_a_task_that_takes_its_workers_sockets_is_told_so(method: str, task_type: str) -> None:
    async with pooled(start_method=method) as harness:
        # A short result waits in shared memory, where the parent finds it; a long one is lost with the worker.
        for size in (3, 100_000):
            await harness.free()
            pid = harness.worker()
            outcome = await harness.run(task_type, json.dumps({"size": size}))
            if size == 3:
                assert (outcome.kind, outcome.result) == (OutcomeKind.RETURNED, '"xxx"')
            else:
                assert outcome.failure is not None
                assert outcome.failure.error == "exited with code 70 during the task"
                assert "cannot speak to its supervisor" in (outcome.failure.stderr or "")
            await refilled(harness, pid)


@METHODS
@pytest.mark.parametrize("max_memory", [1024**3, None])
async def test_a_worker_without_descriptors_loses_no_task(method: str, max_memory: int | None) -> None:
    async with pooled(start_method=method, max_memory_per_worker=max_memory) as harness:
        # Long enough for a look at the worker's size, which needs a descriptor.
        outcome = await harness.run("spend_descriptors", '{"seconds": 0.3}')
        assert outcome.kind is OutcomeKind.RETURNED, outcome
        # So does a payload of this size.
        text = "x" * 100_000
        assert await harness.value("echo", json.dumps({"value": text})) == f'"{text}"'
        assert harness.pool.restarts == {"no_descriptors": 1}


@pytest.mark.usefixtures("no_ticks")
async def test_tasks_that_spoil_their_worker_and_return_do_not_end_the_pool() -> None:
    async with pooled() as harness:
        for _ in range(10):
            outcome = await harness.run("seize_everything")
            assert outcome.kind is OutcomeKind.RETURNED
        assert harness.said("restart_delayed") == []
