"""Slots are filled and refilled: recycling, resizing, workers that cannot boot, crash storms that end."""

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsched.errors import AppError, PoolError
from pgsched.model import OutcomeKind
from pgsched.pool.launcher import Forked
from tests.pool.conftest import Harness, app_in, pooled
from tests.support import FULL, ROOT, eventually_async, gone

KILLS = 300 if FULL else 30
METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])


@METHODS
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise ValueError('on import')", "written.py:2)"),
        ("import json; json.loads('')", "decoder.py:"),
        ("app = App(); app.task(lambda: 0)", "cannot import written: /"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", ""),
        ("def :", "SyntaxError"),
        ("app = 3; other = App()", "written:app is int, must be an App; written:other would do"),
        ("", "written has no attribute app: APP must be module:attribute"),
        ("tasks, mail = App(), App()", "module:attribute; written:tasks and written:mail would do"),
    ],
)
async def test_f24_an_app_that_cannot_be_imported_ends_the_start(
    method: str, source: str, words: str, tmp_path: Path
) -> None:
    harness = app_in(tmp_path, source, start_method=method)
    with pytest.raises((AppError, PoolError)) as caught:
        await harness.pool.start()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    if words:
        assert isinstance(caught.value, AppError)
    if "ValueError" in source:
        assert str(caught.value).startswith("cannot import written: ValueError: on import (at /")
        assert "written.py" in caught.value.details
        assert "importlib" not in caught.value.details
    # One line is enough: nobody is told of a second try that is not made.
    assert not harness.said("restart_delayed")
    if words:
        assert not harness.said("forkserver_died")
    # Fewer than a handful of attempts.
    assert harness.pool.restarts.total() <= 2


@METHODS
async def test_an_import_that_takes_too_long_ends_the_start(method: str, tmp_path: Path) -> None:
    harness = app_in(tmp_path, "import time; time.sleep(600)", start_method=method, boot_timeout=0.5)
    with pytest.raises(PoolError, match=r"0\.5 s"):
        await harness.pool.start()


async def test_an_app_that_names_no_module_of_ours(tmp_path: Path) -> None:
    harness = Harness(app="no.such.place:app")
    with pytest.raises(
        AppError, match=r"cannot import no\.such\.place: ModuleNotFoundError.*, neither in /.* nor among"
    ):
        await harness.pool.start()


async def test_an_app_that_is_named_by_its_file(tmp_path: Path) -> None:
    harness = app_in(tmp_path, "app = App()", app="written.py:app")
    with pytest.raises(AppError, match=r"cannot import written\.py: .* without \.py, as in written:app$"):
        await harness.pool.start()


async def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(AppError, match=r"cannot import tests\.pool\.tasks: the working directory is gone: No such"):
        await Harness().pool.start()


async def test_a_working_directory_that_goes_while_the_pool_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment removes the release that the supervisor was started in."""
    release = tmp_path / "release"
    release.mkdir()
    monkeypatch.chdir(release)
    async with pooled() as harness:
        release.rmdir()
        os.kill(harness.worker(), signal.SIGKILL)
        await eventually_async(lambda: harness.died(1))
        for _ in range(2):
            assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts == {"idle": 1}


@METHODS
@pytest.mark.parametrize("then", ["", "kept = [socket.socketpair() for _ in range(64)]"])
async def test_an_app_that_closes_what_it_has_not_opened(method: str, then: str, tmp_path: Path) -> None:
    harness = app_in(tmp_path, f"import os, socket; os.closerange(3, 256); {then}", start_method=method)
    with pytest.raises(AppError, match="cannot import written:app: it closes descriptors that it has not opened"):
        await harness.pool.start()


async def test_an_app_that_has_the_ends_of_children_ignored(tmp_path: Path) -> None:
    source = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
app = App()
@app.task
def noop() -> None: ...
"""
    harness = app_in(tmp_path, source)
    await harness.pool.start()
    assert await harness.value("noop") is None
    await harness.pool.stop()


@pytest.mark.parametrize("variables", [{"PYTHONWARNINGS": "error"}, {"PYTHONDEVMODE": "1"}])
async def test_python_finds_nothing_to_warn_of_in_the_forkserver(
    variables: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    harness = Harness(environment={"PYTHONPATH": str(ROOT), **variables})
    await harness.pool.start()
    await harness.pool.stop()
    assert capfd.readouterr().err == ""


async def test_f24_workers_that_leave_a_moment_after_they_were_ready_end_the_pool(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source = f"""
import os, threading, time
app = App()
def leave():
    while not os.path.exists({str(gate)!r}):
        time.sleep(0.01)
    os._exit(9)
def recorder(slot):
    timer = threading.Timer(0.3, leave)
    timer.daemon = True
    timer.start()
"""
    harness = app_in(tmp_path, source, recorder="written:recorder", processes=2)
    await harness.pool.start()
    gate.touch()

    def failed() -> bool:
        try:
            harness.pool.turn()
        except PoolError as error:
            return "exited with code 9 while it was idle" in str(error)
        return False

    began = time.monotonic()
    await eventually_async(failed, every=0.02)
    # Six steps of 0.1, 0.2, ... seconds; the two slots share them.
    assert time.monotonic() - began > 5
    assert harness.pool.restarts["idle"] < 20
    assert len(harness.said("restart_delayed")) < 20
    assert len(harness.said("pool_failed")) == 1
    await harness.pool.stop()


async def test_a_worker_that_cannot_boot_later_leaves_the_others_working(tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    source = f"""
import os
import random
app = App()
@app.task
def add(a: int, b: int = 1) -> int:
    return a + b
if os.path.exists({str(flag)!r}):
    raise ValueError("broken by a deploy")
"""
    harness = app_in(tmp_path, source, start_method="spawn", processes=2)
    await harness.pool.start()
    flag.touch()
    os.kill(harness.worker(0), signal.SIGKILL)
    await eventually_async(lambda: harness.pool.restarts["boot"] >= 2)
    assert "broken by a deploy" in str(harness.said("restart_delayed"))
    assert await harness.value("add", '{"a": 1}') == "2"
    flag.unlink()
    await harness.free(2)
    await harness.pool.stop()


@METHODS
async def test_f21_an_app_that_starts_a_pool_at_its_import_is_told_so(method: str, tmp_path: Path) -> None:
    source = """
import asyncio
import functools
from pgsched.pool.pool import Pool, PoolSettings
app = App()
asyncio.run(Pool(PoolSettings(app="written:app", processes=1), lambda claim, outcome: None).start())
"""
    harness = app_in(tmp_path, source, start_method=method)
    with pytest.raises(AppError, match="written:app starts a supervisor when it is imported"):
        await harness.pool.start()


@METHODS
async def test_a_forkserver_that_is_killed_is_replaced_and_workers_go_on(method: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with pooled(start_method=method, processes=2) as harness:
        forkserver = harness.forkserver
        task = harness.start("wait_for", json.dumps({"path": str(done)}))
        os.kill(forkserver, signal.SIGKILL)
        await eventually_async(lambda: harness.said("forkserver_died"))
        assert await harness.value("add", '{"a": 1}') == "2"
        # A worker that is needed now comes from the new one.
        idle = harness.pool.running()[0].slot ^ 1
        os.kill(harness.worker(idle), signal.SIGKILL)
        await eventually_async(lambda: harness.pool.restarts["idle"] == 1)
        await harness.free()
        assert harness.forkserver != forkserver
        done.touch()
        assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED
        assert harness.pool.restarts == {"idle": 1}


async def test_a_forkserver_that_dies_while_it_forks(tmp_path: Path) -> None:
    async with pooled(processes=4) as harness:
        for _ in range(3):
            os.kill(harness.forkserver, signal.SIGSTOP)
            for pid in harness.workers():
                os.kill(pid, signal.SIGKILL)
            await eventually_async(lambda: harness.pool.slots()["booting"] == 4)
            os.kill(harness.forkserver, signal.SIGKILL)
            await harness.free(4)
        assert await harness.value("add", '{"a": 1}') == "2"


async def test_a_forkserver_that_does_not_answer_is_replaced() -> None:
    async with pooled(processes=2, boot_timeout=4.0) as harness:
        forkserver = harness.forkserver
        os.kill(forkserver, signal.SIGSTOP)
        os.kill(harness.worker(0), signal.SIGKILL)
        await eventually_async(lambda: harness.pool.slots()["booting"] == 1)
        await harness.free(2, timeout=60)
        assert harness.forkserver != forkserver
        assert gone(forkserver)


async def test_a_forkserver_that_cannot_fork_in_time_is_told_so(tmp_path: Path) -> None:
    source = """
import os, time
app = App()
os.register_at_fork(before=lambda: time.sleep(600))
"""
    harness = app_in(tmp_path, source, boot_timeout=4.0)
    with pytest.raises(PoolError, match=r"the forkserver did not fork within the boot timeout of 4 s"):
        await harness.pool.start()


async def test_the_number_of_slots_can_be_lowered_while_workers_boot() -> None:
    async with pooled(processes=4) as harness:
        os.kill(harness.forkserver, signal.SIGSTOP)
        for pid in harness.workers():
            os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: harness.pool.slots()["booting"] == 4)
        harness.pool.resize(1)
        assert sum(harness.pool.slots().values()) == 1
        os.kill(harness.forkserver, signal.SIGCONT)
        await harness.free(1)
        assert await harness.value("add", '{"a": 1}') == "2"


async def test_the_forkserver_forgets_a_worker_that_was_born_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would kill, when the supervisor has gone, whoever has that number by then."""
    async with pooled(processes=2) as harness:
        killed = harness.workers()
        filler = harness.pool._workers.filler
        born: list[int | None] = []
        forgotten: list[int] = []
        forked, gone = filler.forked, filler._keeper.gone

        def answered(message: Forked) -> None:
            born.append(message.pid)
            forked(message)

        def collected(pid: int) -> None:
            forgotten.append(pid)
            gone(pid)

        monkeypatch.setattr(filler, "forked", answered)
        monkeypatch.setattr(filler._keeper, "gone", collected)
        os.kill(harness.forkserver, signal.SIGSTOP)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: harness.pool.slots()["booting"] == 2)
        harness.pool.resize(1)
        os.kill(harness.forkserver, signal.SIGCONT)
        await harness.free(1)
        await eventually_async(lambda: len(born) == 2)
        late = {*born} - {harness.worker()}
        await eventually_async(lambda: {*forgotten} == {*killed, *late})


async def test_a_forkserver_with_threads_is_told(tmp_path: Path) -> None:
    source = """
import threading, time
app = App()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
    harness = app_in(tmp_path, source)
    await harness.pool.start()
    assert harness.said("forkserver_threads") == [{"threads": 2}]
    await harness.pool.stop()


@METHODS
async def test_a_worker_never_runs_more_tasks_than_it_may(method: str) -> None:
    async with pooled(start_method=method, processes=2, max_tasks_per_worker=3) as harness:
        pids = []
        for _ in range(20):
            await eventually_async(lambda: harness.dispatch(harness.claim("pid"), 4), every=0.001)
        await eventually_async(lambda: len(harness.outcomes) == 20)
        pids = [outcome.result for outcome in harness.outcomes.values()]
        assert max(pids.count(pid) for pid in pids) == 3
        assert harness.pool.restarts.keys() == {"max_tasks"}
        for ended in harness.said("worker_ended"):
            assert (ended["exit_code"], ended["tasks"]) == (0, 3)


async def test_a_long_task_keeps_no_other_worker_from_being_replaced(tmp_path: Path) -> None:
    async with pooled(processes=2, max_tasks_per_worker=1) as harness:
        long = harness.start("wait_for", json.dumps({"path": str(tmp_path / "done")}))
        assert len({await harness.value("pid") for _ in range(4)}) == 4
        assert long not in harness.outcomes
        (tmp_path / "done").touch()
        assert (await harness.outcome(long)).kind is OutcomeKind.RETURNED
        await eventually_async(lambda: harness.pool.restarts == {"max_tasks": 5})


async def test_a_worker_that_has_grown_ends_its_task_and_keeps_no_other_from_being_replaced(tmp_path: Path) -> None:
    async with pooled(max_memory_per_worker=100 * 1024 * 1024) as harness:
        harness.start("keep", '{"megabytes": 100}')
        # Its size is looked at several times a second at most.
        nap = harness.start("nap", '{"seconds": 0.3}', ahead=4)
        long = harness.start("wait_for", json.dumps({"path": str(tmp_path / "done")}), ahead=4)
        await harness.outcome(nap)
        assert not harness.dispatch(harness.claim("noop"), ahead=4), "nothing is sent ahead to a worker that is worn"
        harness.pool.resize(2)
        await harness.free()
        await harness.reload()
        await eventually_async(lambda: harness.pool.restarts["reloaded"] == 1)
        assert long not in harness.outcomes
        (tmp_path / "done").touch()
        assert (await harness.outcome(long)).kind is OutcomeKind.RETURNED
        await eventually_async(lambda: harness.pool.restarts == {"reloaded": 1, "max_memory": 1})
        await harness.free(2)


async def test_a_worker_that_has_grown_is_replaced_between_two_tasks() -> None:
    async with pooled(max_memory_per_worker=100 * 1024 * 1024) as harness:
        first = await harness.value("keep", '{"megabytes": 10}')
        assert await harness.value("keep", '{"megabytes": 10}') == first
        assert await harness.value("keep", '{"megabytes": 100}') == first
        # Its size is looked at several times a second at most.
        await harness.value("nap", '{"seconds": 0.25}')
        await eventually_async(lambda: harness.pool.restarts["max_memory"] == 1)
        assert await harness.value("pid") != first


async def test_workers_are_replaced_one_after_the_other_and_tasks_go_on() -> None:
    async with pooled(processes=4) as harness:
        before = set(harness.workers())
        absent = 0
        await harness.reload()

        def turned() -> bool:
            nonlocal absent
            slots = harness.pool.slots()
            absent = max(absent, slots["empty"] + slots["booting"] + slots["stopping"])
            harness.dispatch(harness.claim("noop"), 2)
            return harness.pool.restarts["reloaded"] == 4

        await eventually_async(turned, every=0.0005)
        await harness.free(4)
        assert absent == 1
        assert not before & set(harness.workers())
        assert {outcome.kind for outcome in harness.outcomes.values()} == {OutcomeKind.RETURNED}


async def test_a_worker_with_an_old_app_finishes_what_it_runs(tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with pooled() as harness:
        task = harness.start("wait_for", json.dumps({"path": str(done)}))
        waiting = harness.start("noop", ahead=1)
        await harness.reload()
        assert not harness.dispatch(harness.claim("noop"), 8)
        done.touch()
        assert (await harness.outcome(task)).kind is OutcomeKind.RETURNED
        assert (await harness.outcome(waiting)).kind is OutcomeKind.RETURNED
        await eventually_async(lambda: harness.pool.restarts["reloaded"] == 1)
        await harness.free()


async def test_a_worker_that_does_not_leave_is_killed() -> None:
    async with pooled(grace=0.2) as harness:
        os.kill(harness.worker(), signal.SIGSTOP)
        await harness.reload()
        await eventually_async(lambda: harness.pool.restarts["reloaded"] == 1)
        await harness.free()


async def test_stop_ends_everything_at_once() -> None:
    async with pooled(processes=2, grace=60.0) as harness:
        tasks = [harness.start("stubborn"), harness.start("stubborn")]
        waiting = harness.start("noop", ahead=1)
        pids, forkserver = harness.workers(), harness.forkserver
        began = time.monotonic()
        await harness.pool.stop()
        assert time.monotonic() - began < 30
        assert all(gone(pid) for pid in [*pids, forkserver])
        for task in [*tasks, waiting]:
            assert harness.outcomes[task].kind is OutcomeKind.INTERRUPTED
        assert harness.outcomes[waiting].seconds == 0


async def test_stop_while_workers_boot() -> None:
    async with pooled(processes=4) as harness:
        for pid in harness.workers():
            os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: harness.pool.slots()["booting"], every=0.0002)


async def test_stop_during_the_start(tmp_path: Path) -> None:
    harness = app_in(tmp_path, "import time; time.sleep(600)")
    starting = asyncio.create_task(harness.pool.start())
    await eventually_async(lambda: harness.pool._workers.filler._keeper.pid is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.fixture
def log_that_nobody_reads() -> Iterator[None]:
    """A thread of this process logs at full speed into a pipe, and holds a lock of logging while it waits there."""
    reading, writing = os.pipe()
    record, stopped = logging.makeLogRecord({"msg": "x" * 1000}), threading.Event()
    with os.fdopen(writing, "w") as stream:
        handler = logging.StreamHandler(stream)

        def chatter() -> None:
            while not stopped.is_set():
                handler.handle(record)

        thread = threading.Thread(target=chatter)
        thread.start()
        yield
        stopped.set()
        os.set_blocking(reading, False)
        while thread.is_alive():
            # It may have written its last.
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 65536)
            thread.join(0.01)
    os.close(reading)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("log_that_nobody_reads")
async def test_f18_random_kills_lose_no_slot(dice: random.Random) -> None:
    victims: set[int] = set()
    async with pooled(processes=4) as harness:
        while len(victims) < KILLS:
            # Whoever is dead already may not have been noticed yet.
            living = await eventually_async(lambda: sorted(set(harness.workers()) - victims), every=0.001)
            victim = dice.choice(living)
            harness.dispatch(harness.claim("say", '{"words": "x"}'), 2)
            os.kill(victim, signal.SIGKILL)
            victims.add(victim)
        await harness.free(4)
        assert harness.pool.restarts.total() == KILLS
