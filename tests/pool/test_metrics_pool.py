"""Workers of a real pool, their metrics and the user's own, with kills and restarts among them."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsched.model import OutcomeKind
from pgsched.ops.metrics import Metrics
from pgsched.ops.telemetry import Telemetry
from tests.pool.conftest import Harness, pooled
from tests.scraped import Scraped
from tests.support import eventually_async

DURATION = "scheduler_task_execution_duration_seconds"


@pytest.fixture
def telemetry(directory: Path) -> Iterator[Telemetry]:
    metrics = Metrics(directory)
    metrics.know(["send", "fail", "crash", "hang", "deaf"])
    yield Telemetry(metrics)
    metrics.close()


async def run_all(harness: Harness, telemetry: Telemetry, tasks: list[str]) -> None:
    harness.react = lambda claim, outcome: telemetry.outcome(claim, outcome, None)
    before = len(harness.outcomes)
    for task_type in tasks:
        await harness.free(timeout=20)
        harness.start(task_type, '{"size": "big"}' if task_type == "send" else "{}")
    await eventually_async(lambda: len(harness.outcomes) == before + len(tasks), "all outcomes", timeout=30)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
async def test_f80_every_attempt_is_timed_once_whoever_was_killed(
    directory: Path, telemetry: Telemetry, start_method: str
) -> None:
    tasks = ["send", "fail", "crash", "send"] * (10 if start_method == "forkserver" else 2)
    async with pooled(
        app="tests.pool.metered:app", processes=2, start_method=start_method, recorder="pgsched.ops.recorder:make"
    ) as harness:
        await run_all(harness, telemetry, tasks)
        for name, fields in harness.events:
            telemetry.pool_event(name, fields)
        crashes = tasks.count("crash")
        scraped = Scraped.from_directory(directory)
        assert scraped.complaints == []
        assert scraped.value(f"{DURATION}_count", task_type="send", status="completed") == tasks.count("send")
        assert scraped.value(f"{DURATION}_count", task_type="fail", status="failed") == tasks.count("fail")
        assert scraped.value(f"{DURATION}_count", task_type="crash", status="failed") == crashes
        assert scraped.total(f"{DURATION}_count") == len(tasks)
        assert scraped.value("parcels_total", size="big") == tasks.count("send")
        assert scraped.value("parcels_total", size="lost") == crashes
        assert scraped.value("pgsched_worker_restarts_total", reason="crashed") == crashes


async def test_f80_a_stopped_attempt_is_timed_once_whether_it_listens_or_not(
    directory: Path, telemetry: Telemetry
) -> None:
    async with pooled(
        app="tests.pool.metered:app", processes=1, grace=0.3, recorder="pgsched.ops.recorder:make"
    ) as harness:
        harness.react = lambda claim, outcome: telemetry.outcome(claim, outcome, None)
        for task_type in ("hang", "deaf"):
            await harness.free()
            outcome = await harness.outcome(harness.start(task_type, timeout=0.5))
            assert outcome.kind is OutcomeKind.TIMED_OUT
    scraped = Scraped.from_directory(directory)
    for task_type in ("hang", "deaf"):
        assert scraped.value(f"{DURATION}_count", task_type=task_type, status="failed") == 1
    assert scraped.total(f"{DURATION}_count") == 2


async def test_f77_restarts_add_no_file_and_no_count_goes_down(directory: Path, telemetry: Telemetry) -> None:
    async with pooled(
        app="tests.pool.metered:app",
        processes=2,
        max_tasks_per_worker=1,
        recorder="pgsched.ops.recorder:make",
    ) as harness:
        await run_all(harness, telemetry, ["send"] * 20)
        files = _files(directory)
        seen = 20.0
        for _ in range(4):
            await run_all(harness, telemetry, ["send"] * 20)
            scraped = Scraped.from_directory(directory)
            total = scraped.value("parcels_total", size="big")
            assert total == seen + 20
            assert scraped.total(f"{DURATION}_count") == total
            seen = total
        assert _files(directory) == files


async def test_f77_a_gauge_does_not_outlive_its_worker(directory: Path, telemetry: Telemetry) -> None:
    async with pooled(app="tests.pool.metered:app", processes=2, recorder="pgsched.ops.recorder:make") as harness:
        await harness.run("load", '{"size": 5}')
        assert Scraped.from_directory(directory).value("loaded") == 5
        os.kill(harness.worker(0), signal.SIGKILL)
        os.kill(harness.worker(1), signal.SIGKILL)
        await eventually_async(lambda: len(harness.said("worker_ended")) == 2)
        for name, fields in harness.events:
            telemetry.pool_event(name, fields)
        assert Scraped.from_directory(directory).value("loaded") == 0


async def test_an_attempt_that_forked_and_returned_twice_is_timed_once(directory: Path) -> None:
    async with pooled(recorder="pgsched.ops.recorder:make") as harness:
        for _ in range(5):
            await harness.value("fork_and_return")
        assert Scraped.from_directory(directory).total(f"{DURATION}_count") == 5


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
async def test_a_directory_that_is_full_of_holes_or_gone_harms_no_task(directory: Path, start_method: str) -> None:
    async with pooled(
        app="tests.pool.metered:app",
        start_method=start_method,
        preparation="pgsched.ops.guarded:prepare",
        recorder="pgsched.ops.recorder:make",
    ) as harness:
        await harness.value("send", '{"size": "big"}', timeout=30)
        sizes = {path: path.stat() for path in directory.iterdir()}  # noqa: ASYNC240
        assert [path for path, size in sizes.items() if size.st_blocks * 512 < size.st_size] == []
        shutil.rmtree(directory)
        os.kill(harness.worker(), signal.SIGKILL)
        await eventually_async(lambda: harness.said("worker_ended"))
        await harness.value("send", '{"size": "small"}', timeout=30)
        if start_method == "forkserver":
            await harness.reload()
            await harness.value("load", '{"size": 5}', timeout=30)


def _files(directory: Path) -> set[str]:
    # A gauge's file goes with its worker.
    return {path.name for path in directory.iterdir() if not path.name.startswith("gauge_livesum_slot")}
