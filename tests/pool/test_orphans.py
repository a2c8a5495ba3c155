"""Nothing outlives its parent for long, and whatever the kernel gives us to look after is collected."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pool.conftest import pooled
from tests.support import ROOT, eventually, eventually_async, gone, processes

METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])

STAND_IN = """
import asyncio, json, sys
from tests.pool.conftest import Harness

async def main() -> None:
    settings = json.loads(sys.argv[1])
    harness = Harness(**settings["pool"])
    await harness.pool.start()
    for task_type, payload in settings["tasks"]:
        harness.start(task_type, payload)
    print(json.dumps({"workers": harness.workers(), "forkserver": harness.forkserver}), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class StandIn:
    """A parent that can be killed: a process of its own with a pool."""

    def __init__(self, tasks: list[tuple[str, str]], **pool: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", STAND_IN, json.dumps({"pool": pool, "tasks": tasks})],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def started(self) -> list[int]:
        """The pids of the forkserver and the workers, once the tasks were sent."""
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        return [told["forkserver"], *told["workers"]]

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stand_in() -> Iterator[Any]:
    made: list[StandIn] = []

    def make(tasks: list[tuple[str, str]], **pool: Any) -> StandIn:
        made.append(StandIn(tasks, **pool))
        return made[-1]

    yield make
    for each in made:
        each.close()


def in_group(groups: list[int]) -> list[int]:
    return [found.pid for found in processes() if found.group in groups and not found.dead]


@METHODS
def test_f10_workers_end_with_a_parent_that_is_killed(method: str, stand_in: Any) -> None:
    parent = stand_in(
        [("nap", '{"seconds": 600}'), ("stubborn", "{}"), ("stuck_in_c", "{}")], processes=5, start_method=method
    )
    pids = parent.started()
    assert len(pids) == 6
    parent.kill()
    eventually(lambda: all(map(gone, pids)))


@METHODS
def test_f10_what_their_tasks_have_started_ends_too(method: str, stand_in: Any) -> None:
    parent = stand_in([("start_sleeps", '{"how": "deep"}')] * 2, processes=2, start_method=method)
    pids = parent.started()
    eventually(lambda: len(in_group(pids)) >= 3 + 2 * 4)
    parent.kill()
    eventually(lambda: not in_group(pids))


@METHODS
def test_f10_a_parent_that_is_killed_right_after_its_forkserver(method: str, stand_in: Any) -> None:
    parent = stand_in([("nap", '{"seconds": 600}')], processes=3, start_method=method)
    pids = parent.started()
    os.kill(pids[0], signal.SIGKILL)
    parent.kill()
    eventually(lambda: all(map(gone, pids)))


def test_f10_a_parent_that_is_killed_while_the_app_is_imported(stand_in: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "written.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    parent = stand_in([], app="written:app", environment=environment)
    pid = int(eventually(lambda: mark.exists() and mark.read_text()))
    parent.kill()
    eventually(lambda: gone(pid))


async def test_f35_orphans_are_collected() -> None:
    async with pooled(processes=2) as harness:
        for _ in range(20):
            await harness.value("orphan")

        def zombies() -> list[int]:
            return [found.pid for found in processes() if found.parent == os.getpid() and found.dead]

        await eventually_async(lambda: not zombies())
        assert harness.pool.restarts.total() == 0


def start_child() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])


async def test_a_child_of_somebody_else_is_left_to_him() -> None:
    async with pooled() as harness:
        child = start_child()
        await eventually_async(lambda: gone(child.pid))
        for _ in range(3):
            harness.pool.turn()
            await harness.run("leave", '{"how": "_exit_7"}')
        assert child.wait() == 7
