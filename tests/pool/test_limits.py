"""Limits are kept from outside: no code of a task is in the way, and nothing that it started is left."""

import json
import math
import os
import subprocess
import time
from pathlib import Path

import pytest

from pgsched.model import OutcomeKind
from pgsched.pool import limits
from tests.pool.conftest import Harness, pooled
from tests.support import descendants, eventually, eventually_async, gone, process, processes

METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])


@pytest.mark.parametrize(
    "task_type",
    [
        "spin",
        "sleep_in_c",
        "stuck_in_c",
        "catastrophic_regex",
        "join_thread",
        "block_signals",
        "stubborn",
        "change_group",
    ],
)
async def test_f16_a_time_limit_holds_whatever_the_task_does(task_type: str) -> None:
    async with pooled(grace=0.5) as harness:
        await harness.free()
        outcome = await harness.outcome(harness.start(task_type, timeout=1.0))
        assert outcome.kind is OutcomeKind.TIMED_OUT, outcome


async def test_f16_a_time_limit_is_told_with_the_stacks() -> None:
    async with pooled(grace=0.3) as harness:
        for task_type in ("spin", "sleep_in_c", "stuck_in_c", "catastrophic_regex"):
            await harness.free()
            outcome = await harness.outcome(harness.start(task_type, timeout=0.5))
            assert outcome.kind is OutcomeKind.TIMED_OUT
            failure = outcome.failure
            assert failure is not None
            assert failure.error == "timed out after 0.5 s"
            assert f"in {task_type}" in (failure.stack or "")
            assert failure.out_of_memory in (None, False)
        await harness.free()
        assert harness.pool.restarts == {"timed_out": 4}


async def test_the_task_type_s_limit_holds_and_the_row_s_goes_before_it() -> None:
    async with pooled() as harness:
        outcome = await harness.run("short_limit", '{"seconds": 30}')
        assert outcome.kind is OutcomeKind.TIMED_OUT
        assert outcome.failure is not None
        assert outcome.failure.error == "timed out after 0.3 s"
        assert 0.29 <= outcome.seconds < 20
        await harness.free()
        outcome = await harness.outcome(harness.start("short_limit", '{"seconds": 0.5}', timeout=20.0))
        assert outcome.kind is OutcomeKind.RETURNED


async def test_a_task_sent_ahead_has_its_whole_time() -> None:
    async with pooled() as harness:
        first = harness.start("nap", '{"seconds": 2.5}', timeout=30.0)
        second = harness.start("nap", '{"seconds": 0.01}', timeout=2.0, ahead=1)
        assert (await harness.outcome(first)).kind is OutcomeKind.RETURNED
        assert (await harness.outcome(second)).kind is OutcomeKind.RETURNED


async def test_a_task_that_returns_after_the_soft_signal_has_completed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled() as harness:
        pid = harness.worker()
        task = harness.start("polite", json.dumps({"mark": str(mark)}))
        await eventually_async(mark.exists)
        harness.pool.stop_task(task, OutcomeKind.CANCELLED, "somebody cancelled it")
        outcome = await harness.outcome(task)
        assert (outcome.kind, outcome.result) == (OutcomeKind.RETURNED, '"somebody cancelled it"')
        # A signal that arrives late must not meet another task: the worker is replaced all the same.
        await harness.free()
        assert harness.worker() != pid


async def test_an_async_task_is_cancelled_from_within(tmp_path: Path) -> None:
    cleaned = tmp_path / "cleaned"
    async with pooled() as harness:
        # The first in a worker imports asyncio, which may take longer than the limit.
        await harness.value("async_nap", '{"seconds": 0}')
        await harness.free()
        outcome = await harness.outcome(harness.start("async_cleanup", json.dumps({"path": str(cleaned)}), timeout=1.0))
        assert outcome.kind is OutcomeKind.TIMED_OUT
        assert cleaned.exists()


def start_two(harness: Harness, directory: Path) -> tuple[int, int]:
    """The worker is at the second task, which waits for a file ``done``; the slot still believes that the first runs,
    because the loop does not."""
    mark = directory / "mark"
    first = harness.start("noop")
    second = harness.start("wait_for", json.dumps({"path": str(directory / "done"), "mark": str(mark)}), ahead=1)
    eventually(mark.exists)
    return first, second


async def test_a_stop_reaches_only_the_task_it_is_for(tmp_path: Path) -> None:
    """The worker has gone on to the next task when the signal comes: that one runs to its end."""
    async with pooled() as harness:
        first, second = start_two(harness, tmp_path)
        harness.pool._workers.slots[0].order_stop(OutcomeKind.CANCELLED, "too late", math.inf)
        assert (await harness.outcome(first)).kind is OutcomeKind.RETURNED
        (tmp_path / "done").touch()
        assert (await harness.outcome(second)).kind is OutcomeKind.RETURNED
        await harness.free()
        assert harness.pool.restarts == {"cancelled": 1}


async def test_a_stop_of_a_task_that_is_over_is_noticed_before_it_hits_the_next(tmp_path: Path) -> None:
    async with pooled() as harness:
        first, second = start_two(harness, tmp_path)
        harness.pool.stop_task(first, OutcomeKind.CANCELLED, "too late")
        assert (await harness.outcome(first)).kind is OutcomeKind.RETURNED
        (tmp_path / "done").touch()
        assert (await harness.outcome(second)).kind is OutcomeKind.RETURNED
        assert not harness.pool.restarts


async def test_asking_again_does_not_prolong_the_grace_period(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with pooled(grace=0.3) as harness:
        task = harness.start("stubborn", json.dumps({"mark": str(mark)}))
        await eventually_async(mark.exists)

        def ended() -> bool:
            harness.pool.stop_task(task, OutcomeKind.CANCELLED, "cancelled")
            return task in harness.outcomes

        await eventually_async(ended)


async def test_looking_often_does_not_prolong_it_either() -> None:
    async with pooled(grace=0.3) as harness:
        task = harness.start("stubborn", timeout=1.0)

        def ended() -> bool:
            harness.pool.turn()
            return task in harness.outcomes

        await eventually_async(ended)
        assert harness.outcomes[task].kind is OutcomeKind.TIMED_OUT


@pytest.mark.parametrize("task_type", ["grow", "grow_below"])
async def test_a_memory_limit_counts_the_task_and_what_it_started(task_type: str) -> None:
    async with pooled() as harness:
        outcome = await harness.run(task_type, '{"megabytes": 300}')
        assert outcome.kind is OutcomeKind.OVER_MEMORY
        failure = outcome.failure
        assert failure is not None
        assert failure.error.startswith("over memory: ")
        assert failure.error.endswith(" MiB used, limit 128 MiB")
        assert failure.out_of_memory is True
        assert task_type in (failure.stack or "")
        await harness.free()
        assert harness.pool.restarts == {"over_memory": 1}
        assert await harness.value("grow", '{"megabytes": 20, "seconds": 0.2}') == str(20 * 1024 * 1024)


async def test_a_task_over_its_memory_has_little_grace() -> None:
    """It may go on growing; whoever does not heed the soft signal is ended soon, however long the grace."""
    async with pooled(grace=60.0) as harness:
        outcome = await harness.run("grow_stubbornly", '{"megabytes": 200}')
        assert outcome.kind is OutcomeKind.OVER_MEMORY


async def test_memory_that_processes_share_is_counted_once() -> None:
    async with pooled() as harness:
        outcome = await harness.run("share", '{"megabytes": 70}')
        assert outcome.kind is OutcomeKind.RETURNED, outcome


async def test_an_exact_look_at_memory_takes_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes long to tell what many large processes share; the loop has others to look after."""
    began: list[float] = []

    def slow(pids: list[int]) -> int:
        began.append(time.monotonic())
        time.sleep(0.1)
        return 0

    monkeypatch.setattr(limits, "exact_memory", slow)
    async with pooled() as harness:
        harness.start("share", '{"megabytes": 70, "seconds": 600}')
        await eventually_async(lambda: began)

        def elapsed() -> float:
            harness.pool.turn()
            return time.monotonic() - began[0]

        # Long enough for a dozen of looks, were there no bound.
        await eventually_async(lambda: elapsed() >= 2)
        assert len(began) <= 1 + elapsed() / 5


async def test_an_exact_look_at_memory_says_nothing_of_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(pids: list[int]) -> int:
        # So long that the next look would come after the end of the next task.
        time.sleep(0.3)
        return 1 << 40

    monkeypatch.setattr(limits, "exact_memory", over)
    async with pooled(grace=0.3) as harness:
        for _ in range(2):
            outcome = await harness.run("share", '{"megabytes": 70, "seconds": 5}')
            assert outcome.kind is OutcomeKind.OVER_MEMORY


@METHODS
@pytest.mark.parametrize("how", ["group", "deep", "session"])
async def test_f11_nothing_that_the_task_started_is_left(method: str, how: str) -> None:
    async with pooled(start_method=method, grace=0.3) as harness:
        pid = harness.worker()
        task = harness.start("start_sleeps", json.dumps({"how": how}))

        def sleeps() -> list[int]:
            return [found.pid for found in descendants(pid) if found.name == "sleep"]

        await eventually_async(lambda: len(sleeps()) == (2 if how == "deep" else 1))
        started = sleeps()
        harness.pool.stop_task(task, OutcomeKind.TIMED_OUT, "by the test")
        assert (await harness.outcome(task)).kind is OutcomeKind.TIMED_OUT
        await eventually_async(lambda: all(process(each) is None for each in started))


def test_descendants_are_found_on_kernels_that_do_not_list_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 600 & wait' & wait"], start_new_session=True) as child:
        eventually(lambda: len(limits.descendants(child.pid)) == 2)
        listed = limits.descendants(child.pid)
        monkeypatch.setattr(limits, "_LISTED", False)
        assert sorted(limits.descendants(child.pid)) == sorted(listed)
        limits.kill_tree(child.pid)
        eventually(lambda: all(map(gone, listed)))


async def test_f14_a_task_may_have_processes_of_its_own() -> None:
    async with pooled() as harness:
        assert await harness.value("inner_executor") == "[0,2,4,6,8,10,12,14]"
        assert await harness.value("inner_pool") == "[0,2,4,6,8,10,12,14]"
        assert await harness.value("inner_process") == "0"
        assert await harness.value("terminate_inner") == "-15"


@pytest.mark.parametrize("task_type", ["inner_executor", "inner_process"])
async def test_f14_they_end_with_it(task_type: str) -> None:
    async with pooled(grace=0.2) as harness:
        pid = harness.worker()
        task = harness.start(task_type, '{"seconds": 600}')
        await eventually_async(lambda: descendants(pid))
        harness.pool.stop_task(task, OutcomeKind.TIMED_OUT, "by the test")
        assert (await harness.outcome(task)).kind is OutcomeKind.TIMED_OUT
        await eventually_async(lambda: not [found for found in processes() if found.group == pid])


async def test_f11_what_a_task_leaves_behind_ends_with_its_worker() -> None:
    async with pooled() as harness:
        left = int(await harness.value("leave_sleep") or "0")
        assert process(left) is not None
        os.kill(harness.worker(), 9)
        # It holds the worker's end of everything, so an end of file never comes; the death is believed all the same.
        await eventually_async(lambda: harness.pool.restarts["idle"] == 1)
        await eventually_async(lambda: process(left) is None)
        assert await harness.value("add", '{"a": 1}') == "2"


async def test_f09_many_time_limits_leave_no_zombie() -> None:
    async with pooled(processes=4, grace=0.05) as harness:
        pids = set()
        for _ in range(24):
            await harness.free()
            pids.update(harness.workers())
            harness.start("stubborn", timeout=0.5)
            assert sum(found.dead for pid in pids if (found := process(pid))) <= 4
        await harness.free(4)
        await eventually_async(lambda: not any(found.dead for pid in pids if (found := process(pid))))
        assert harness.pool.restarts == {"timed_out": 24}


async def test_f03_a_stubborn_task_is_followed_by_a_quick_one() -> None:
    async with pooled(grace=0.1) as harness:
        for _ in range(10):
            await harness.free()
            task = harness.start("stubborn", timeout=0.5)
            assert (await harness.outcome(task)).kind is OutcomeKind.TIMED_OUT
            ended = time.monotonic()
            assert await harness.value("nap", '{"seconds": 0.01}') == "0.01"
            assert time.monotonic() - ended < 10
