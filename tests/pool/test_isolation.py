"""A worker has nothing of the parent's, and a task finds nothing of the one before."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from pgsched.pool.launcher import environment
from tests.pool.conftest import Harness, app_in, pooled
from tests.support import eventually_async, process

METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])


async def identity(harness: Harness) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await harness.value("identity") or "")
    return found


async def test_f23_a_task_finds_its_surroundings_as_they_were() -> None:
    async with pooled() as harness:
        before = json.loads(await harness.value("surroundings") or "")
        await harness.value("disturb")
        # Longer than the alarm that the task has left.
        await harness.value("nap", '{"seconds": 0.3}')
        after = json.loads(await harness.value("surroundings") or "")
        # Documented: generators of random numbers are seeded once for a worker, and no task's seed is taken back.
        assert before.pop("random") != after.pop("random")
        assert after == before
        assert before["directory"] == os.getcwd()
        assert before["variable"] is None
        # The soft signal works again too.
        await harness.free()
        outcome = await harness.outcome(harness.start("spin", timeout=1.0))
        assert outcome.failure is not None
        assert "in spin" in (outcome.failure.stack or "")
        assert harness.pool.restarts.total() <= 1


async def test_f23_output_works_after_a_task_has_closed_it() -> None:
    async with pooled() as harness:
        await harness.value("disturb")
        for stream in ("stdout", "stderr"):
            await harness.value("say", json.dumps({"words": "still here", "stream": stream}))
        outcome = await harness.run("say_and_fail", '{"words": "heard"}')
        assert outcome.failure is not None
        assert "heard" in (outcome.failure.stderr or "")


async def test_an_app_may_print_to_something_that_is_no_file(tmp_path: Path) -> None:
    source = """
import sys

class Printer:
    def write(self, text):
        return len(text)

sys.stdout, sys.stderr = Printer(), None
app = App()

@app.task
def say():
    print("hello")
"""
    harness = app_in(tmp_path, source)
    await harness.pool.start()
    pid = harness.worker()
    for _ in range(3):
        assert await harness.value("say") is None
    assert harness.worker() == pid
    await harness.pool.stop()


@METHODS
async def test_f20_no_descriptor_of_the_parent_is_inherited(method: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, (tmp_path / "open").open("w") as file:
        # As careless libraries do it.
        os.set_inheritable(server.fileno(), True)
        os.set_inheritable(file.fileno(), True)
        async with pooled(start_method=method, processes=2) as harness:
            ours = {os.readlink(f"/proc/self/fd/{each.fileno()}") for each in (server, file)}
            theirs = json.loads(await harness.value("descriptors") or "")
            assert not ours & set(theirs)
            # Standard streams, the two sockets, the control page and its mapping.
            assert len(theirs) == 7
            place = f"/proc/{harness.forkserver}/fd"
            forkserver = [os.readlink(f"{place}/{name}") for name in os.listdir(place)]
            assert not ours & set(forkserver)
            # Standard streams and the control socket.
            assert len(forkserver) == 4


@METHODS
async def test_a_worker_is_the_supervisor_s_own_child_and_leads_a_group(method: str) -> None:
    async with pooled(start_method=method, processes=2) as harness:
        for _ in range(2):
            found = await identity(harness)
            assert found["parent"] == os.getpid()
            assert found["group"] == found["pid"]
            assert found["name"].startswith("pgsched-slot")
        forkserver = process(harness.forkserver)
        assert forkserver is not None
        assert forkserver.group == harness.forkserver
        assert forkserver.parent == os.getpid()


@METHODS
async def test_the_kernel_takes_a_worker_before_the_supervisor(method: str) -> None:
    """Where memory runs out, the supervisor may be the largest; the death of a worker costs an attempt and no more."""

    def score(pid: int | str) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    async with pooled(start_method=method) as harness:
        pid = (await identity(harness))["pid"]
        assert score(pid) >= min(score("self") + 100, 1000)
        # And no less after the next task.
        assert score((await identity(harness))["pid"]) == score(pid)


@METHODS
async def test_f28_signals_of_the_service_do_not_reach_tasks(method: str) -> None:
    async with pooled(start_method=method, processes=2) as harness:
        task = harness.start("nap", '{"seconds": 0.4}')
        for pid in [*harness.workers(), harness.forkserver]:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        assert (await harness.outcome(task)).result == "0.4"
        os.kill(harness.worker(0), signal.SIGKILL)
        await eventually_async(lambda: harness.died(1))
        await harness.free(2)
        assert harness.pool.restarts == {"idle": 1}


@METHODS
async def test_secrets_travel_by_message_only(method: str) -> None:
    async with pooled(start_method=method, dsn="postgresql://u:s3cr3t@h/db") as harness:
        found = await identity(harness)
        assert found["dsn"] == "postgresql://u:s3cr3t@h/db"
        assert "s3cr3t" not in found["argv"] + found["environment"]
        forkserver = Path(f"/proc/{harness.forkserver}")
        assert b"s3cr3t" not in (forkserver / "cmdline").read_bytes() + (forkserver / "environ").read_bytes()


@METHODS
async def test_a_worker_imports_what_it_needs(method: str, tmp_path: Path) -> None:
    source = """
import sys
app = App()
@app.task
def modules() -> list:
    return sorted(sys.modules)
"""
    harness = app_in(tmp_path, source, start_method=method)
    await harness.pool.start()
    modules = set(json.loads(await harness.value("modules") or ""))
    await harness.pool.stop()
    for name in ("click", "psycopg", "multiprocessing", "asyncio", "subprocess", "prometheus_client"):
        assert name not in modules
    assert not {name for name in modules if name.startswith(("pgsched.store", "pgsched.cli", "pgsched.supervisor"))}


@METHODS
async def test_workers_draw_different_random_numbers(method: str) -> None:
    async with pooled(start_method=method, max_tasks_per_worker=1) as harness:
        assert len({(await identity(harness))["random"] for _ in range(4)}) == 4


async def test_workers_draw_different_random_numbers_from_numpy(tmp_path: Path) -> None:
    """A stand-in, so that the tests need no numpy: what matters is that its seed is drawn in each worker."""
    source = """
import sys, types
app = App()
seeded = []
numpy_random = types.ModuleType("numpy.random")
numpy_random.seed = lambda: seeded.append(1)
sys.modules["numpy.random"] = numpy_random
@app.task
def count() -> int:
    return len(seeded)
"""
    harness = app_in(tmp_path, source)
    await harness.pool.start()
    assert await harness.value("count") == "1"
    await harness.pool.stop()


async def test_f19_numeric_libraries_keep_to_one_thread_unless_told() -> None:
    async with pooled() as harness:
        assert (await identity(harness))["threads"] == "1"
    async with pooled(environment={"OPENBLAS_NUM_THREADS": "3"}) as harness:
        assert (await identity(harness))["threads"] == "3"
    assert environment({"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
    assert environment({"MKL_NUM_THREADS": "4"})["MKL_NUM_THREADS"] == "4"
    assert environment({"MKL_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "1"


@METHODS
async def test_a_timeout_that_the_app_sets_for_its_sockets_is_not_for_the_worker_s_own(
    method: str, tmp_path: Path
) -> None:
    source = """
import os, socket
socket.setdefaulttimeout(0.3)
app = App()
@app.task
def pid() -> int:
    return os.getpid()
"""
    harness = app_in(tmp_path, source, start_method=method)
    await harness.pool.start()
    pid = await harness.value("pid")
    # The time itself is what must do no harm, to a worker that waits for a task.
    await asyncio.sleep(1.0)
    assert await harness.value("pid") == pid
    assert not harness.pool.restarts
    await harness.pool.stop()


NUMERIC = """
import os
import numpy

app = App()

def multiply() -> float:
    return float((numpy.ones((500, 500)) @ numpy.ones((500, 500)))[7, 7])

THREADS = multiply() and len(os.listdir("/proc/self/task"))

@app.task
def product() -> list[float]:
    return [multiply(), THREADS]
"""


@METHODS
async def test_f19_arrays_are_multiplied_at_the_import_and_in_tasks(method: str, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    harness = app_in(tmp_path, NUMERIC, start_method=method, processes=4)
    await harness.pool.start()
    products = [json.loads(await harness.value("product") or "") for _ in range(50)]
    await harness.pool.stop()
    assert {product for product, _ in products} == {500.0}
    if method == "forkserver":
        assert {threads for _, threads in products} == {1}, "the library has started threads where workers are forked"


async def test_current_task_outside_of_a_task() -> None:
    from pgsched.context import current_task

    with pytest.raises(LookupError, match="no task runs in this process"):
        current_task()


@METHODS
async def test_a_recorder_hears_of_every_attempt(method: str, tmp_path: Path) -> None:
    source = f"""
app = App()
@app.task
def add(a: int, b: int = 1) -> int:
    return a + b
class Recorder:
    def __init__(self, slot):
        self.slot = slot
    def ran(self, *values):
        with open({str(tmp_path / "heard")!r}, "a") as file:
            print(self.slot, *values, file=file)
        if values[1] == "failed":
            raise ValueError("recorder")
"""
    harness = app_in(tmp_path, source, start_method=method, recorder="written:Recorder")
    await harness.pool.start()
    await harness.value("add", '{"a": 1}')
    await harness.run("add", '{"b": 1}')
    # It raised, and is heard no more; tasks go on.
    await harness.value("add", '{"a": 1}')
    await harness.pool.stop()
    lines = [line.split() for line in (tmp_path / "heard").read_text().splitlines()]
    assert [line[:3] for line in lines] == [["0", "add", "completed"], ["0", "add", "failed"]]
    for line in lines:
        assert 0 <= float(line[3]) < 30
        # The claim was 0.25 seconds late when it was made.
        assert 0.25 <= float(line[4]) < 30
