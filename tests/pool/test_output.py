"""What workers write is read without waiting, passed on where there is room, and its end kept for the record."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgsched.errors import AppError
from pgsched.model import OutcomeKind
from pgsched.pool.stream import TAIL, Sink, Stream
from tests.pool.conftest import app_in, pooled
from tests.support import ROOT, eventually, eventually_async


async def test_f13_floods_and_kills_stall_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    async with pooled(processes=4) as harness:
        await harness.value("noop")
        await harness.free(4)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            tasks = [harness.start("flood", '{"megabytes": 4, "then": 9}') for _ in range(3)]
            quick = harness.start("nap", '{"seconds": 0.01}')
            assert (await harness.outcome(quick)).kind is OutcomeKind.RETURNED
            for task in tasks:
                outcome = await harness.outcome(task, timeout=20)
                assert outcome.kind is OutcomeKind.CRASHED
                assert outcome.failure is not None
                assert len(outcome.failure.stderr or "") <= TAIL
                assert (outcome.failure.stderr or "").endswith("x\n")
            await harness.free(4)
        assert len(os.listdir("/proc/self/fd")) == before
    captured = capfd.readouterr().err
    # All that was printed before the kill came through, in whole lines.
    assert captured.count("\n") > 9 * 32768
    assert {len(line) for line in captured.splitlines()} == {127}


BACKGROUND = r"""
import os, signal, termios
from pgsched.ops.logwriter import LogWriter
from pgsched.pool.stream import Sink

# As the leader of a session we take it for our own.
terminal = os.open(os.ttyname(2), os.O_RDWR)
modes = termios.tcgetattr(terminal)
modes[3] |= termios.TOSTOP
termios.tcsetattr(terminal, termios.TCSANOW, modes)
if background := os.fork():
    _, status = os.waitpid(background, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
os.setpgid(0, 0)
heard = []
signal.signal(signal.SIGTTOU, lambda *_: heard.append(1))
signal.alarm(20)
Sink().write(b"from a worker\n")
writer = LogWriter(2, dropped_line=str)
writer.put(b"from us\n")
writer.close(20)
os._exit(len(heard))
"""


def test_a_terminal_that_stops_who_writes_from_the_background_is_written_to_all_the_same() -> None:
    """It sends SIGTTOU, which means one process less to a supervisor, and lets nobody go on who only listens for it."""
    ours, theirs = os.openpty()
    command = subprocess.Popen(
        [sys.executable, "-c", BACKGROUND], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        assert command.wait(60) == 0
        assert os.read(ours, 1000) == b"from a worker\r\nfrom us\r\n"
    finally:
        command.kill()
        command.wait()
        os.close(ours)


@pytest.mark.parametrize("where", ["full", "closed", "no space"])
def test_f13_a_parent_whose_own_output_is_stuck_goes_on(where: str) -> None:
    """A process of its own, because it is the parent's standard error that is stuck."""
    code = """
import asyncio
from tests.pool.conftest import pooled
async def main():
    async with pooled(processes=2) as harness:
        for _ in range(4):
            await harness.run("flood", '{"megabytes": 1}', timeout=20)
        print(harness.outcomes and all(o.kind == "returned" for o in harness.outcomes.values()))
        print(harness.pool._workers.sink.dropped > 1000000)
asyncio.run(main())
"""
    reading, writing = os.pipe()
    if where == "closed":
        os.close(reading)
    elif where == "no space":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
        timeout=50,
        check=False,
    )
    os.close(writing)
    if where != "closed":
        os.close(reading)
    assert process.stdout.split() == ["True", "True"]


async def test_lines_of_workers_are_passed_on_whole(capfd: pytest.CaptureFixture[str]) -> None:
    async with pooled(processes=2) as harness:
        for number in range(20):
            await harness.free()
            harness.start("say", json.dumps({"words": f"line {number}"}))
        await eventually_async(lambda: len(harness.outcomes) == 20)
        await harness.run("say", '{"words": "no end of line", "stream": "stdout"}')
    assert sorted(capfd.readouterr().err.splitlines()) == sorted([f"line {n}" for n in range(20)] + ["no end of line"])


async def test_what_the_app_prints_when_it_is_imported_is_printed_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    harness = app_in(tmp_path, "print('once')\napp = App()", processes=3)
    await harness.pool.start()
    os.kill(harness.worker(), signal.SIGKILL)
    await eventually_async(lambda: harness.died(1))
    await harness.free(3)
    await harness.pool.stop()
    assert capfd.readouterr().err == "once\n"


async def test_what_the_app_prints_before_its_import_fails_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    harness = app_in(tmp_path, "print('once')\nraise ValueError")
    with pytest.raises(AppError):
        await harness.pool.start()
    assert capfd.readouterr().err == "once\n"


async def test_the_tail_belongs_to_the_attempt() -> None:
    async with pooled() as harness:
        for number in range(5):
            outcome = await harness.run("say_and_fail", json.dumps({"words": f"attempt {number}"}))
            assert outcome.failure is not None
            assert outcome.failure.stderr == f"attempt {number}\n"
            await harness.run("say", '{"words": "between"}')


def test_a_full_pipe_costs_lines_and_no_time(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = Sink(writing)
    line = b"x" * 99 + b"\n"
    for _ in range(2000):
        sink.write(line)
    assert sink.dropped >= 2000 * 100 - 65536
    assert os.get_blocking(writing), "the flags of a shared pipe are not ours to change"
    read = os.read(reading, 1 << 20)
    sink.write(b"after\n")
    sink.close()
    read += os.read(reading, 1 << 20)
    # What was torn is ended, so that the next line begins at the left.
    assert read.splitlines()[-1] == b"after"
    assert all(len(each) <= 99 for each in read.splitlines())


def test_a_pipe_that_cannot_be_opened_again(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pipe

    def refuse(*arguments: object) -> int:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        sink = Sink(writing)
    for _ in range(2000):
        sink.write(b"x" * 99 + b"\n")
    assert sink.dropped >= 2000 * 100 - 65536
    assert len(os.read(reading, 1 << 20)) + sink.dropped >= 2000 * 100
    sink.close()


def test_a_socket_a_file_and_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = Sink(theirs.fileno())
        for _ in range(20_000):
            sink.write(b"x" * 99 + b"\n")
        assert sink.dropped > 0
        assert ours.recv(5) == b"xxxxx"
        sink.close()
    with (tmp_path / "log").open("wb") as file:
        sink = Sink(file.fileno())
        sink.write(b"line\n")
        sink.close()
    assert (tmp_path / "log").read_bytes() == b"line\n"
    descriptor = os.open("/dev/null", os.O_WRONLY)
    os.close(descriptor)
    sink = Sink(descriptor)
    sink.write(b"line\n")
    sink.close()


def test_the_tail_is_bounded_and_begins_where_it_is_told(pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = pipe
    with (tmp_path / "log").open("wb") as file:
        stream = Stream(os.dup(reading), Sink(file.fileno()))
        os.write(writing, b"before\n")
        assert stream.read()
        begin = stream.total
        assert stream.tail(begin) is None
        os.write(writing, "caf\xe9 \0 ".encode("latin-1") + b"".join(b"line %d\n" % n for n in range(30)))
        assert stream.read()
        assert not stream.read()
        tail = stream.tail(begin) or ""
        assert tail.splitlines() == [f"line {n}" for n in range(10, 30)]
        assert stream.tail(0) == tail
        os.write(writing, b"y" * 20_000 + b"unfinished")
        assert stream.read()
        assert len(stream.tail(begin) or "") == TAIL
        stream.close()
    assert (tmp_path / "log").read_bytes().endswith(b"unfinished\n")


def test_a_pipe_that_somebody_else_keeps_full_can_be_closed(pipe: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = pipe
    writer = subprocess.Popen(["yes"], stdout=writing)
    try:
        with (tmp_path / "log").open("wb") as file:
            stream = Stream(os.dup(reading), Sink(file.fileno()))
            eventually(stream.read)
            stream.close()
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
