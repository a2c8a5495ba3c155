"""The pool is changed while tasks run: other numbers of slots, and another app."""

import asyncio
import json
import os
import resource
import select
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pgsched.errors import AppError, PoolError
from pgsched.model import OutcomeKind
from pgsched.rules.demand import Durations
from pgsched.rules.restart import Intensity
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.feeding import Feeder
from tests.pool.conftest import Harness, app_in, pooled, started
from tests.support import eventually, eventually_async, gone, process

METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])

FIRST = """
import time
from pathlib import Path
app = App()
@app.task
def version() -> int:
    return 1
@app.task(timeout=60)
def wait_for(path: str, mark: str) -> int:
    Path(mark).touch()
    while not Path(path).exists():
        time.sleep(0.002)
    return 1
@app.task
def former() -> int:
    return 1
"""
SECOND = """
# Longer, so that no cached code of the first one is taken for its own.
from pathlib import Path
app = App()
@app.task
def version() -> int:
    return 2
@app.task
def later() -> int:
    return 2
"""


def write(directory: Path, source: str) -> None:
    (directory / "written.py").write_text(f"from pgsched.app import App\n{source}\n")


@asynccontextmanager
async def written(directory: Path, source: str = FIRST, **settings: Any) -> AsyncIterator[Harness]:
    async with started(app_in(directory, source, **settings)) as harness:
        yield harness


async def begun(harness: Harness, directory: Path, name: str = "0", done: str = "done") -> int:
    """Start a task that waits for the file `done`, and wait until it runs; its id."""
    mark = directory / f"mark {name}"
    task = harness.start("wait_for", json.dumps({"path": str(directory / done), "mark": str(mark)}))
    await eventually_async(mark.exists)
    return task


async def begun_in_the_first_slot(harness: Harness, directory: Path) -> tuple[int, Path]:
    """Start such a task in the first of two slots, the other one being free; its id, and the file that it waits for."""
    # Which slot is given a task first depends on which worker was ready first, so that both are given one.
    done = {await begun(harness, directory, name, f"done {name}"): directory / f"done {name}" for name in "01"}
    first, other = (running.claim.task_id for running in sorted(harness.pool.running(), key=lambda one: one.slot))
    done[other].touch()
    assert (await harness.outcome(other)).kind is OutcomeKind.RETURNED
    return first, done[first]


async def value(harness: Harness, task_type: str) -> str | None:
    """Run a task as soon as a worker may have it; its result."""
    claim = harness.claim(task_type)
    await eventually_async(lambda: harness.dispatch(claim), "a worker that may have it")
    outcome = await harness.outcome(claim.task_id)
    assert outcome.kind is OutcomeKind.RETURNED, outcome
    return outcome.result


async def test_the_number_of_slots_can_be_changed(tmp_path: Path) -> None:
    async with pooled(processes=1) as harness:
        harness.pool.resize(4)
        await harness.free(4)
        tasks = [await begun(harness, tmp_path, str(number)) for number in range(4)]
        harness.pool.resize(2)
        assert sum(harness.pool.slots().values()) == 4
        (tmp_path / "done").touch()
        for task in tasks:
            assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 2)
        assert harness.pool.restarts == {"resized": 2}
        await harness.free(2)
        harness.pool.resize(3)
        await harness.free(3)
        with pytest.raises(ValueError, match="processes 0"):
            harness.pool.resize(0)


@contextmanager
def descriptors_allowed(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_there_are_no_more_slots_than_descriptors_for_them() -> None:
    """The pool would give up: its workers could not be started."""
    async with pooled() as harness:
        with descriptors_allowed(128):
            harness.pool.resize(1000)
            assert harness.pool.settings.processes == 14
            await harness.free(14)
            assert not harness.said("restart_delayed")
            harness.pool.resize(1)
            await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)


async def test_a_pool_takes_the_descriptors_that_it_may_have() -> None:
    with descriptors_allowed(32):
        async with pooled(processes=3) as harness:
            await harness.free(3)


async def test_a_pool_that_is_too_large_for_its_descriptors_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsched.pool.descriptors.allow", lambda: None)
    with descriptors_allowed(128), pytest.raises(PoolError, match=r"^processes 15: .* descriptors for 14; raise "):
        await Harness(processes=15).pool.start()


async def test_a_host_without_room_for_more_workers_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pooled() as harness:
        monkeypatch.setattr("pgsched.pool.descriptors.room", lambda: 2)
        harness.pool._workers.filler._intensity = Intensity(limit=0)
        with descriptors_allowed(3):
            harness.pool.resize(2)
            await eventually_async(lambda: len(harness.said("restart_delayed")) > 1)
            assert "cannot start a worker: [Errno 24]" in harness.said("restart_delayed")[0]["error"]
            harness.pool.turn()
            assert await value(harness, "noop") is None
        await harness.free(2)


async def test_slots_without_a_task_go_first(tmp_path: Path) -> None:
    async with pooled(processes=3) as harness:
        naps = [harness.start("nap", '{"seconds": 0.2}') for _ in range(2)]
        task = await begun(harness, tmp_path)
        for nap in naps:
            await harness.outcome(nap)
        # Which slot that is depends on which worker was ready first.
        [running] = harness.pool.running()
        harness.pool.resize(1)
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)
        assert harness.pool.running()[0].slot == running.slot
        assert harness.pool.free() == 0
        (tmp_path / "done").touch()
        assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED
        await harness.free(1)
        assert harness.pool.restarts == {"resized": 2}


async def test_a_slot_that_was_to_go_and_is_wanted_again_stays(tmp_path: Path) -> None:
    """No more tasks run at once than the larger number says."""
    async with pooled(processes=2) as harness:
        tasks = [await begun(harness, tmp_path, str(number)) for number in range(2)]
        pids = set(harness.workers())
        for number in (1, 2, 1, 2):
            harness.pool.resize(number)
        assert sum(harness.pool.slots().values()) == 2
        assert not harness.dispatch(harness.claim("noop"))
        (tmp_path / "done").touch()
        for task in tasks:
            await harness.outcome(task)
        await harness.free(2)
        assert set(harness.workers()) == pids
        assert not harness.pool.restarts


async def test_what_was_sent_ahead_to_a_slot_that_goes_is_taken_back(tmp_path: Path) -> None:
    async with pooled(processes=2) as harness:
        tasks = [await begun(harness, tmp_path, str(number)) for number in range(2)]
        waiting = [harness.start("noop", ahead=4) for _ in range(4)]
        harness.pool.resize(1)
        back = [task for task in waiting if task in harness.outcomes]
        # Two waited behind each task, and one of the two goes.
        assert len(back) == 2
        assert {harness.outcomes[task][:2] for task in back} == {(OutcomeKind.INTERRUPTED, 0.0)}
        (tmp_path / "done").touch()
        for task in {*tasks, *waiting} - set(back):
            assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)


async def test_a_task_is_held_to_its_limit_in_a_slot_that_goes(tmp_path: Path) -> None:
    async with pooled(processes=2, grace=0.2) as harness:
        marks = [tmp_path / str(number) for number in range(2)]
        tasks = [harness.start("stubborn", json.dumps({"mark": str(mark)}), timeout=2.0) for mark in marks]
        await eventually_async(lambda: all(mark.exists() for mark in marks), every=0.001)
        harness.pool.resize(1)
        kinds = {(await harness.outcome(task)).kind for task in tasks}
        assert OutcomeKind.TIMED_OUT in kinds
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)
        await harness.free(1)


async def test_a_worker_that_is_killed_in_a_slot_that_goes_has_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pooled(processes=2) as harness:
        tasks = [await begun(harness, tmp_path, str(number)) for number in range(2)]
        monkeypatch.setattr(harness.pool._workers._out_of_memory, "killed", lambda now: True)
        harness.pool.resize(1)
        [going] = [slot for slot in harness.pool._workers.slots.values() if slot.surplus]
        assert going.running is not None
        victim = going.running.claim.task_id
        os.kill(harness.worker(going.number), signal.SIGKILL)
        outcome = await harness.outcome(victim)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.failure is not None
        assert outcome.failure.out_of_memory, "the kernel was asked"
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)
        [ended] = harness.said("worker_ended")
        assert (ended["reason"], ended["task_id"]) == ("crashed", victim)
        assert harness.pool.restarts == {"crashed": 1}
        (tmp_path / "done").touch()
        [other] = set(tasks) - {victim}
        assert (await harness.outcome(other)).kind is OutcomeKind.RETURNED


async def test_the_slots_of_a_pool_that_was_made_smaller_leave_no_descriptor() -> None:
    async with pooled(processes=1) as harness:
        await harness.free()
        descriptors = len(os.listdir("/proc/self/fd"))
        harness.pool.resize(12)
        await harness.free(12, timeout=20)
        harness.pool.resize(1)
        await eventually_async(lambda: sum(harness.pool.slots().values()) == 1)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert len(harness.workers()) == 1


@METHODS
async def test_new_code_is_taken_and_a_running_task_ends_in_the_old(method: str, tmp_path: Path) -> None:
    async with written(tmp_path, processes=2, start_method=method) as harness:
        task, done = await begun_in_the_first_slot(harness, tmp_path)
        before, forkserver = set(harness.workers()), harness.forkserver
        write(tmp_path, SECOND)
        await harness.reload()
        assert set(harness.pool.task_types) == {"version", "later"}
        assert await value(harness, "later") == "2"
        assert await value(harness, "version") == "2"
        assert len(before & set(harness.workers())) == 1, "the one that runs the task"
        assert harness.said("reload_finished") == []
        done.touch()
        assert (await harness.outcome(task)).result == "1"
        await eventually_async(lambda: harness.said("reload_finished"))
        assert not before & set(harness.workers())
        assert harness.pool.restarts == {"reloaded": 2}
        assert not harness.said("app_changed")
        if method == "forkserver":
            assert harness.forkserver != forkserver
            await eventually_async(lambda: gone(forkserver))
        # What is born later has the new app too.
        os.kill(harness.worker(), signal.SIGKILL)
        await eventually_async(lambda: harness.pool.restarts["idle"] == 1)
        await harness.free(2)
        assert await value(harness, "version") == "2"
        assert not harness.said("forkserver_died")


async def test_tasks_that_only_the_new_app_has_wait_for_a_worker_that_has_it(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        tasks = [await begun(harness, tmp_path, str(number)) for number in range(2)]
        write(tmp_path, SECOND)
        await harness.reload()
        assert not harness.dispatch(harness.claim("later"), ahead=4)
        assert not harness.dispatch(harness.claim("version"), ahead=4), "nothing is sent ahead to an old app"
        (tmp_path / "done").touch()
        assert await value(harness, "later") == "2"
        for task in tasks:
            assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED


async def test_tasks_that_only_the_new_app_has_wait_for_an_idle_worker_to_be_replaced(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        write(tmp_path, SECOND)
        await harness.reload()
        assert harness.pool.free() == 1, "the other one leaves"
        assert not harness.dispatch(harness.claim("later"))
        assert harness.dispatch(harness.claim("version"))
        assert await value(harness, "later") == "2"
        assert {outcome.result for outcome in harness.outcomes.values()} == {"1", "2"}


async def test_tasks_that_only_the_new_app_has_keep_no_others_waiting(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        write(tmp_path, SECOND)
        await harness.reload()
        assert harness.pool.free() == 1, "the other one leaves"
        backlog, first, second = Backlog(), harness.claim("later"), harness.claim("later")
        other, last = harness.claim("version"), harness.claim("version")
        backlog.push([first, second, other, last])
        harness.dispatched = {claim.task_id: claim for claim in backlog.claims()}
        feeder = Feeder(harness.pool, backlog, Durations(), may=lambda: True, fed=lambda: None)
        feeder.feed()
        assert backlog.claims() == [first, second, last]
        assert (await harness.outcome(other.task_id)).result == "1"

        def all_fed() -> bool:
            feeder.feed()
            return not backlog

        await eventually_async(all_fed)
        for claim in (first, second):
            assert (await harness.outcome(claim.task_id)).result == "2"


async def test_the_workers_are_replaced_one_by_one(tmp_path: Path) -> None:
    async with written(tmp_path, processes=4) as harness:
        write(tmp_path, SECOND)
        absent = 0

        def finished() -> bool:
            nonlocal absent
            slots = harness.pool.slots()
            absent = max(absent, slots["empty"] + slots["booting"] + slots["stopping"])
            harness.dispatch(harness.claim("version"), 2)
            return bool(harness.said("reload_finished"))

        await harness.reload()
        await eventually_async(finished, every=0.0005)
        await harness.free(4)
        assert absent == 1
        assert {outcome.kind for outcome in harness.outcomes.values()} == {OutcomeKind.RETURNED}
        assert {outcome.result for outcome in harness.outcomes.values()} <= {"1", "2"}


@METHODS
@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ValueError('broken by a deploy')", "ValueError: broken by a deploy"),
        ("def :", "SyntaxError"),
        ("app = 3", "must be an App"),
        ("import os; os._exit(3)", "exited with code 3"),
    ],
)
async def test_an_app_that_cannot_be_imported_leaves_the_old_one_in_service(
    method: str, source: str, error: str, tmp_path: Path
) -> None:
    async with written(tmp_path, processes=2) as harness:
        before, forkserver = harness.workers(), harness.forkserver
        write(tmp_path, f"# another\n{source}")
        with pytest.raises((AppError, PoolError), match=error):
            await harness.reload()
        assert set(harness.pool.task_types) == {"version", "wait_for", "former"}
        assert await value(harness, "former") == "1"
        assert (harness.workers(), harness.forkserver) == (before, forkserver)
        assert not harness.pool.restarts
        assert not harness.events or {name for name, _ in harness.events} == {"worker_ready"}
        write(tmp_path, SECOND)
        await harness.reload()
        assert await value(harness, "later") == "2"


async def test_an_import_that_takes_too_long_is_a_reload_that_failed(tmp_path: Path) -> None:
    async with written(tmp_path, boot_timeout=4.0) as harness:
        write(tmp_path, "import time; time.sleep(600)")
        with pytest.raises(PoolError, match="the boot timeout of 4 s is over"):
            await harness.reload()
        assert await value(harness, "former") == "1"


async def test_another_version_of_pgsched_is_a_reload_that_failed(tmp_path: Path) -> None:
    """It was installed over the one that runs, and describes task types otherwise."""
    other = """
from pgsched.pool import boot
ours = boot.describe_tasks
boot.describe_tasks = lambda app: [{**each, "colour": "red"} for each in ours(app)]
"""
    async with written(tmp_path) as harness:
        before = harness.forkserver
        write(tmp_path, SECOND + other)
        with pytest.raises(PoolError, match="another version of pgsched, for which a restart is needed"):
            await harness.reload()
        assert harness.forkserver == before
        assert await value(harness, "version") == "1"


async def test_a_forkserver_that_is_killed_while_it_imports_is_a_reload_that_failed(tmp_path: Path) -> None:
    async with written(tmp_path) as harness:
        write(tmp_path, "import time\ntime.sleep(600)\napp = App()")
        reloading = asyncio.create_task(harness.reload())
        others = harness.pool._workers.filler._others
        await eventually_async(lambda: harness.pool._workers.filler._others is not others)
        [keeper] = harness.pool._workers.filler._others
        assert keeper.pid is not None
        os.kill(keeper.pid, signal.SIGKILL)
        with pytest.raises(PoolError, match=r"the forkserver was lost: killed by signal 9 \(SIGKILL\)"):
            await reloading
        assert await value(harness, "version") == "1"


async def test_a_forkserver_that_dies_before_it_is_in_service_changes_nothing(tmp_path: Path) -> None:
    async with written(tmp_path) as harness:
        write(tmp_path, SECOND)
        async with harness.pool.reload() as adopt:
            [keeper] = harness.pool._workers.filler._others
            assert keeper.pid is not None
            os.kill(keeper.pid, signal.SIGKILL)
            await eventually_async(lambda: keeper.pid is None)
            with pytest.raises(PoolError, match="lost before it was needed"):
                adopt()
        assert await value(harness, "former") == "1"


async def test_one_that_is_not_taken_is_gone(tmp_path: Path) -> None:
    async with written(tmp_path) as harness:
        async with harness.pool.reload():
            [keeper] = harness.pool._workers.filler._others
            pid = keeper.pid
        assert pid is not None
        await eventually_async(lambda: keeper.pid is None)
        assert gone(pid)
        assert not harness.pool.restarts
        assert await value(harness, "version") == "1"


async def test_reloads_that_follow_one_another_leave_one_forkserver_and_the_last_app(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        task = await begun(harness, tmp_path)
        for number in range(3, 6):
            write(tmp_path, f"# {'x' * number}\napp = App()\n@app.task\ndef version() -> int:\n    return {number}")
            await harness.reload()
        assert await value(harness, "version") == "5"
        await eventually_async(lambda: not [k for k in harness.pool._workers.filler._others if k.pid is not None])
        (tmp_path / "done").touch()
        assert (await harness.outcome(task)).result == "1"
        await eventually_async(lambda: harness.said("reload_finished"))
        await harness.free(2)
        assert [await value(harness, "version") for _ in range(4)] == ["5"] * 4


async def test_a_worker_that_the_old_forkserver_owes_is_born_of_the_new_one(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        os.kill(harness.forkserver, signal.SIGSTOP)
        os.kill(harness.worker(0), signal.SIGKILL)
        await eventually_async(lambda: harness.pool.slots()["booting"] == 1)
        write(tmp_path, SECOND)
        await harness.reload()
        await eventually_async(lambda: harness.said("reload_finished"))
        await harness.free(2)
        assert [await value(harness, "version") for _ in range(4)] == ["2"] * 4
        assert harness.pool.restarts == {"idle": 1, "reloaded": 1}


async def test_an_answer_of_the_old_forkserver_may_come_too_late(tmp_path: Path) -> None:
    async with written(tmp_path, processes=2) as harness:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(context))
        filler = harness.pool._workers.filler
        write(tmp_path, SECOND)
        async with harness.pool.reload() as adopt:
            keeper = filler._keeper
            assert keeper._launcher is not None
            control = keeper._launcher.control
            os.kill(harness.worker(0), signal.SIGKILL)
            # Without a turn of the loop: the answer is there, and nobody has read it.
            eventually(lambda: harness.pool.turn() >= 0 and filler.expecting)
            eventually(lambda: select.select([control], [], [], 0)[0])
            adopt()
        await eventually_async(lambda: keeper.pid is None)
        await eventually_async(lambda: harness.said("reload_finished"))
        assert faults == []
        assert [await value(harness, "version") for _ in range(4)] == ["2"] * 4


async def test_a_new_forkserver_looks_after_the_workers_of_the_old(tmp_path: Path) -> None:
    """When the supervisor is killed, nobody else ends what a task has started in the worker's group."""
    source = (
        FIRST
        + "\nimport subprocess\n@app.task\ndef start() -> int:\n    return subprocess.Popen(['sleep', '600']).pid\n"
    )
    async with written(tmp_path, source) as harness:
        pid = int(await value(harness, "start") or 0)
        async with harness.pool.reload() as adopt:
            # Busy, or its worker would be replaced, and the group ended with it.
            task = await begun(harness, tmp_path)
            adopt()
        keeper = harness.pool._workers.filler._keeper
        assert keeper._launcher is not None
        # What a supervisor's end looks like to it.
        keeper._launcher.hang_up()
        eventually(lambda: gone(pid))
        await harness.outcome(task)
        await eventually_async(lambda: process(pid) is None, "the orphan is collected")
