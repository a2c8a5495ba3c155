"""Claims are handed out without blocking, ahead of time where that is wanted, and taken back where it is not."""

import asyncio
import json
import os
import select
import signal
from pathlib import Path

from pgsched.model import OutcomeKind
from tests.pool.conftest import Harness, pooled
from tests.support import eventually, eventually_async, process


def stop_all(harness: Harness) -> None:
    """Hold every worker still."""
    for pid in harness.workers():
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda pid=pid: (found := process(pid)) is not None and found.state == "T")  # type: ignore[misc]


def continue_all(harness: Harness) -> None:
    for pid in harness.workers():
        os.kill(pid, signal.SIGCONT)


async def test_idle_workers_come_first_and_then_the_least_busy() -> None:
    async with pooled(processes=2) as harness:
        stop_all(harness)
        assert harness.pool.free() == 2
        assert harness.dispatch(harness.claim("noop"), 3)
        assert harness.dispatch(harness.claim("noop"), 3)
        assert harness.pool.free() == 0
        assert len({running.slot for running in harness.pool.running()}) == 2
        assert not harness.dispatch(harness.claim("noop"), 0)
        for _ in range(6):
            assert harness.dispatch(harness.claim("noop"), 3)
        assert not harness.dispatch(harness.claim("noop"), 3)
        assert [len(slot.sent) for slot in harness.pool._workers.slots.values()] == [4, 4]
        continue_all(harness)
        await eventually_async(lambda: len(harness.outcomes) == 8)
        assert harness.pool.free() == 2


async def test_a_full_socket_refuses_and_nothing_is_lost() -> None:
    async with pooled() as harness:
        stop_all(harness)
        payload = json.dumps({"value": "x" * 50_000})
        sent = 0
        while harness.dispatch(harness.claim("length", payload), 1000):
            sent += 1
        assert 1 <= sent < 20
        continue_all(harness)
        await eventually_async(lambda: len(harness.outcomes) == sent)
        assert await harness.value("length", payload) == "50000"


async def test_what_was_not_begun_is_taken_back_in_order(tmp_path: Path) -> None:
    mark, done = tmp_path / "mark", tmp_path / "done"
    async with pooled() as harness:
        running = harness.start("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))
        waiting = [harness.start("add", json.dumps({"a": number}), ahead=9) for number in range(5)]
        large = harness.start("length", json.dumps({"value": "x" * 1_000_000}), ahead=9)
        await eventually_async(mark.exists)
        descriptors = len(os.listdir("/proc/self/fd"))
        assert [claim.task_id for claim in harness.recall()] == [*waiting, large]
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert harness.recall() == []
        done.touch()
        assert (await harness.outcome(running)).kind is OutcomeKind.RETURNED
        await harness.free()
        # The very same claims can be given again.
        for claim in list(harness.recalled):
            assert harness.dispatch(claim, 9)
        assert [(await harness.outcome(task_id)).result for task_id in waiting] == ["1", "2", "3", "4", "5"]
        assert (await harness.outcome(large)).result == "1000000"


async def test_a_worker_from_which_everything_was_taken_back_is_idle() -> None:
    async with pooled(processes=2) as harness:
        stop_all(harness)
        for _ in range(2):
            harness.start("noop")
        slot = harness.pool.running()[0].slot
        assert len(harness.recall(slot)) == 1
        assert harness.pool.free() == 1
        assert len(harness.recall()) == 1
        assert harness.pool.free() == 2
        continue_all(harness)
        assert await harness.value("add", '{"a": 1}') == "2"


async def test_every_claim_is_either_recalled_or_has_an_outcome() -> None:
    """The kernel decides who gets a frame: nobody gets it twice."""
    async with pooled(processes=2) as harness:
        for _ in range(200):
            while harness.dispatch(harness.claim("noop"), 8):
                pass
            await asyncio.sleep(0)
            harness.recall()
        await eventually_async(lambda: len(harness.outcomes) == len(harness.dispatched))
        assert len(harness.recalled) > 0
        assert {outcome.kind for outcome in harness.outcomes.values()} == {OutcomeKind.RETURNED}


async def test_a_task_that_waits_is_stopped_by_not_beginning_it(tmp_path: Path) -> None:
    mark, done = tmp_path / "mark", tmp_path / "done"
    async with pooled() as harness:
        pid = harness.worker()
        running = harness.start("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))
        waiting = [harness.start("add", json.dumps({"a": number}), ahead=9) for number in range(3)]
        await eventually_async(mark.exists)
        harness.pool.stop_task(waiting[1], OutcomeKind.CANCELLED, "cancelled")
        assert harness.outcomes == {waiting[1]: (OutcomeKind.CANCELLED, 0.0, None, None, None, None)}
        done.touch()
        assert (await harness.outcome(running)).kind is OutcomeKind.RETURNED
        assert (await harness.outcome(waiting[0])).result == "1"
        assert (await harness.outcome(waiting[2])).result == "3"
        assert harness.worker() == pid


async def test_stopping_the_running_task_gives_those_behind_it_back(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled() as harness:
        running = harness.start("wait_for", json.dumps({"path": str(tmp_path / "never"), "mark": str(mark)}))
        waiting = [harness.start("noop", ahead=9) for _ in range(3)]
        await eventually_async(mark.exists)
        harness.pool.stop_task(running, OutcomeKind.CANCELLED, "cancelled")
        for task in waiting:
            assert harness.outcomes[task][:2] == (OutcomeKind.INTERRUPTED, 0.0)
        assert (await harness.outcome(running)).kind is OutcomeKind.CANCELLED
        # Asked again, and for what is not here.
        harness.pool.stop_task(running, OutcomeKind.CANCELLED, "cancelled")
        harness.pool.stop_task(5, OutcomeKind.CANCELLED, "cancelled")
        await harness.free()


async def test_a_run_that_was_taken_back_is_not_begun_although_the_worker_has_it(tmp_path: Path) -> None:
    """It came in the same frame as the one that runs; its ticket is gone."""
    mark, done = tmp_path / "mark", tmp_path / "done"
    async with pooled() as harness:
        claims = [harness.claim("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))]
        claims += [harness.claim("add", json.dumps({"a": number})) for number in range(3)]
        for claim in claims:
            assert harness.pool.dispatch(claim, 9)
            harness.dispatched[claim.task_id] = claim
        assert harness.pool.flush() == []
        await eventually_async(mark.exists)
        assert harness.recall() == claims[1:]
        following = harness.start("add", '{"a": 41}', ahead=9)
        done.touch()
        assert (await harness.outcome(following)).result == "42"
        assert len(harness.outcomes) == 2


async def test_a_report_does_not_wait_while_there_is_nothing_to_do() -> None:
    async with pooled() as harness:
        harness.start("noop", ahead=9)
        process = harness.pool._workers.slots[0].process
        assert process is not None
        # The loop does not run here, so the parent does not look for it either.
        eventually(lambda: select.select([process.sock], [], [], 0)[0], "the report")


async def test_a_full_socket_is_empty_after_everything_was_taken_back() -> None:
    """An idle worker does not read; its socket has to have room for what comes next."""
    async with pooled() as harness:
        stop_all(harness)
        payload = json.dumps({"value": "x" * 50_000})
        for _ in range(3):
            sent = 0
            while harness.dispatch(harness.claim("length", payload), 1000):
                sent += 1
            assert len(harness.recall()) == sent > 0
        continue_all(harness)
        assert await harness.value("length", payload) == "50000"


async def test_a_stop_meant_for_another_claim_of_the_task_stops_nothing(tmp_path: Path) -> None:
    mark, done = tmp_path / "mark", tmp_path / "done"
    async with pooled() as harness:
        running = harness.start("wait_for", json.dumps({"path": str(done), "mark": str(mark)}))
        await eventually_async(mark.exists)
        harness.pool.stop_task(running, OutcomeKind.CANCELLED, "cancelled", fence=6)
        done.touch()
        assert (await harness.outcome(running)).kind is OutcomeKind.RETURNED
        await harness.free()
        assert not harness.pool.restarts


async def test_running_tells_what_runs(tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with pooled(processes=2) as harness:
        task = harness.start("wait_for", json.dumps({"path": str(done)}))
        await eventually_async(lambda: harness.pool.running()[0].seconds > 0.01)
        (running,) = harness.pool.running()
        assert running.claim.task_id == task
        assert running.pid == harness.worker(running.slot)
        assert harness.pool.slots() == {
            "empty": 0,
            "booting": 0,
            "idle": 1,
            "busy": 1,
            "stopping": 0,
            "killing": 0,
        }
        done.touch()
        await harness.outcome(task)
        assert harness.pool.running() == []


async def test_an_outcome_may_dispatch_and_stop_and_recall() -> None:
    async with pooled(processes=2) as harness:

        def react(_claim: object, _outcome: object) -> None:
            if len(harness.dispatched) < 200:
                harness.dispatch(harness.claim("noop"), 4)
                harness.dispatch(harness.claim("noop"), 4)
                for claim in harness.recall():
                    harness.dispatch(claim, 4)
                for running in harness.pool.running()[:1] if len(harness.dispatched) % 50 == 0 else []:
                    harness.pool.stop_task(running.claim.task_id, OutcomeKind.CANCELLED, "by the reaction")

        def goes_on() -> bool:
            # The reactions end when both workers are being replaced.
            if len(harness.dispatched) < 200:
                harness.dispatch(harness.claim("noop"), 4)
            return len(harness.outcomes) == len(harness.dispatched) >= 200

        harness.react = react
        await eventually_async(goes_on, timeout=20)
