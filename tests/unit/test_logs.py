"""Logs: one line an event whatever it holds, no password, a bounded number, and nobody ever waits."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pgsched.events import emit
from pgsched.ops import logs
from pgsched.ops.logs import Formatter
from pgsched.ops.logwriter import LogWriter
from pgsched.ops.throttle import Throttle
from tests.support import ROOT, eventually

NOON = 1_800_000_000.123


def redact(text: str) -> str:
    return text.replace('s3"cret', "***")


def text_line(event: str = "event", /, **fields: object) -> str:
    return Formatter("text", redact).line(NOON, logging.WARNING, event, fields).decode()


def json_line(event: str = "event", /, **fields: object) -> dict[str, Any]:
    line = Formatter("json", redact).line(NOON, logging.WARNING, event, fields)
    assert line.isascii()
    assert line.count(b"\n") == 1
    read: dict[str, Any] = json.loads(line)
    return read


class TestText:
    def test_fields_come_in_the_order_in_which_they_were_given(self) -> None:
        line = text_line("task_failed", task=12, type="compress", attempt=2, slot=0, seconds=1.25, error="no such file")
        assert line.endswith(
            ' WARNING task_failed task=12 type=compress attempt=2 slot=0 seconds=1.25 error="no such file"\n'
        )

    def test_time_is_local_with_its_offset(self) -> None:
        moment = datetime.fromisoformat(text_line().split(" ")[0])
        assert moment.utcoffset() == datetime.fromtimestamp(NOON).astimezone().utcoffset()
        assert abs(moment.timestamp() - NOON) < 0.001

    @pytest.mark.parametrize(
        "value",
        [
            "two\nlines",
            "carriage\rreturn",
            "\x1b[31mred",
            "bell\x07",
            "nul\x00",
            "next line\x85",
            "line\u2028separator",
            "right to left\u202eoverride",
            "half\ud800",
            "undecodable\udc80",
            'quote" x=1',
            "back\\slash",
        ],
    )
    def test_f45_a_value_cannot_break_out_of_its_line(self, value: str) -> None:
        line = text_line(error=value, after=1)
        assert line.endswith(" after=1\n")
        assert line[:-1].isprintable()
        shown = re.search(r' error="((?:[^"\\]|\\.)*)" after', line)
        assert shown is not None
        assert shown[1].encode().decode("unicode_escape") == value

    def test_text_in_any_language_stays_readable(self) -> None:
        assert text_line(path="größe/文件 1").endswith('path="größe/文件 1"\n')

    def test_none_is_left_out(self) -> None:
        assert text_line(slot=None, pid=3).endswith("event pid=3\n")

    def test_a_long_value_is_cut_and_says_so(self) -> None:
        line = text_line(error="x" * 10_000)
        assert len(line) < logs.LONGEST + 200
        assert "(8000 more characters)" in line


class TestJson:
    def test_a_record(self) -> None:
        assert json_line("task_failed", task=12, seconds=0.1234567, error="größe\n\udc80") == {
            "time": "2027-01-15T08:00:00.123Z",
            "level": "warning",
            "event": "task_failed",
            "task": 12,
            "seconds": 0.123457,
            "error": "größe\n\udc80",
        }

    def test_what_is_no_json_number_becomes_text(self) -> None:
        assert json_line(rate=float("nan"), most=float("inf"))["rate"] == "nan"

    def test_fields_cannot_replace_the_event_or_its_time(self) -> None:
        record = json_line("real", event="fake", time=0, level="debug")
        assert (record["event"], record["level"], record["event_"]) == ("real", "warning", "fake")


class TestPasswords:
    """F82: the last line of defence, whoever logs it and in whatever shape."""

    @pytest.mark.parametrize(
        "value",
        [
            'password=s3"cret host=h',
            ["a", {"dsn": 's3"cret'}],
            ValueError('bad s3"cret'),
            {'s3"cret': 1},
            Path('/tmp/s3"cret'),
        ],
        ids=["text", "nested", "exception", "key", "object"],
    )
    def test_f82_is_taken_out_before_escaping(self, value: object) -> None:
        line = text_line(value=value)
        assert "***" in line
        assert "cret" not in line

    def test_a_redaction_that_fails_shows_nothing(self) -> None:
        def fails(text: str) -> str:
            raise RuntimeError(text)

        line = Formatter("text", fails).line(NOON, logging.INFO, "event", {"dsn": "secret"}).decode()
        assert "secret" not in line
        assert "RuntimeError" in line


class TestThrottle:
    def test_the_first_ones_pass_then_a_steady_rate(self) -> None:
        throttle: Throttle[str] = Throttle(burst=3, interval=2.0)
        assert [throttle.admit("a", 0.0) for _ in range(5)] == [0, 0, 0, None, None]
        assert throttle.admit("a", 1.9) is None
        assert throttle.admit("a", 2.0) == 3
        assert throttle.admit("a", 2.1) is None

    def test_a_long_silence_saves_up_no_more_than_the_first_ones(self) -> None:
        throttle: Throttle[str] = Throttle(burst=3, interval=2.0)
        throttle.admit("a", 0.0)
        assert [throttle.admit("a", 3600.0) for _ in range(4)] == [0, 0, 0, None]

    def test_kinds_do_not_share(self) -> None:
        throttle: Throttle[str] = Throttle(burst=1, interval=60.0)
        assert [throttle.admit(kind, 0.0) for kind in "aab"] == [0, None, 0]

    def test_f86_an_hour_of_failures_is_a_few_lines_a_minute(self) -> None:
        throttle: Throttle[str] = Throttle(burst=10, interval=6.0)
        written = [at for at in range(36_000) if throttle.admit("away", at / 10) is not None]
        assert len(written) <= 10 + 3600 / 6
        assert len([at for at in written if at < 600]) <= 20

    def test_what_was_suppressed_is_told_once_when_it_does_not_come_again(self) -> None:
        throttle: Throttle[str] = Throttle(burst=1, interval=5.0)
        for _ in range(4):
            throttle.admit("a", 0.0)
        assert throttle.overdue(4.0) == []
        assert throttle.overdue(5.0) == [("a", 3)]
        assert throttle.overdue(6.0) == []

    def test_the_number_of_kinds_is_bounded(self) -> None:
        throttle: Throttle[int] = Throttle(burst=1, interval=5.0)
        for kind in range(5000):
            throttle.admit(kind, 0.0)
        assert len(throttle._buckets) <= 1000


def dropped_line(count: int) -> bytes:
    return b"dropped %d\n" % count


class TestWriter:
    def test_lines_come_out_whole_and_in_order(self, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        writer = LogWriter(writing, dropped_line=dropped_line)
        lines = [b"line %d\n" % number for number in range(2000)]
        for line in lines:
            writer.put(line)
        writer.close()
        os.close(writing)
        with os.fdopen(os.dup(reading), "rb") as file:
            assert file.read() == b"".join(lines)

    def test_f13_a_full_pipe_delays_nobody_and_the_loss_is_told(self, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        writer = LogWriter(writing, dropped_line=dropped_line, capacity=100)
        line = b"x" * 999 + b"\n"
        slowest = 0.0
        for _ in range(3000):
            started = time.perf_counter()
            writer.put(line)
            slowest = max(slowest, time.perf_counter() - started)
        assert slowest < 5
        assert writer.dropped > 2000
        received = bytearray()
        reader = threading.Thread(target=lambda: _read_to_end(reading, received))
        reader.start()
        eventually(lambda: b"dropped" in received)
        writer.close()
        os.close(writing)
        reader.join()
        told = sum(int(count) for count in re.findall(rb"dropped (\d+)\n", received))
        assert told == writer.dropped
        assert set(re.sub(rb"dropped \d+\n", b"", bytes(received)).split(b"\n")) == {line[:-1], b""}

    def test_closing_does_not_wait_for_a_reader_that_does_not_read(self, pipe: tuple[int, int]) -> None:
        _, writing = pipe
        writer = LogWriter(writing, dropped_line=dropped_line)
        for _ in range(500):
            writer.put(b"x" * 1000)
        started = time.monotonic()
        writer.close(timeout=0.1)
        assert time.monotonic() - started < 10
        _read_some(pipe[0])

    def test_f13_a_closed_pipe_ends_the_writing_and_nothing_else(self, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        os.close(reading)
        writer = LogWriter(writing, dropped_line=dropped_line)
        for _ in range(3):
            writer.put(b"line\n")
            eventually(writer._lines.empty)
        writer.close()
        assert not writer._thread.is_alive()
        assert writer.dropped == 3

    def test_f13_a_full_disk_costs_lines_and_nothing_else(self) -> None:
        descriptor = os.open("/dev/full", os.O_WRONLY)
        writer = LogWriter(descriptor, dropped_line=dropped_line)
        os.close(descriptor)
        writer.put(b"line\n")
        eventually(lambda: writer.dropped == 1)
        writer.put(b"line\n")
        writer.close()
        assert writer.dropped == 2

    def test_a_file_system_that_fails_once_costs_a_line_and_not_the_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A network file system, say; one that tells of it at the close, too."""
        place = tmp_path / "log"
        with place.open("wb") as file:
            writer = LogWriter(file.fileno(), dropped_line=dropped_line)
        own, write, close = writer._descriptor, os.write, os.close

        def fail(descriptor: int, text: bytes) -> int:
            if descriptor == own:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return write(descriptor, text)

        def close_late(descriptor: int) -> None:
            close(descriptor)
            if descriptor == own:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            writer.put(b"first\n")
            eventually(lambda: writer.dropped == 1)
        complaints: list[threading.ExceptHookArgs] = []
        with monkeypatch.context() as patch:
            patch.setattr(threading, "excepthook", complaints.append)
            patch.setattr(os, "close", close_late)
            writer.put(b"second\n")
            writer.close(timeout=10)
        assert place.read_bytes() == b"dropped 1\nsecond\n"
        assert complaints == []

    def test_a_terminal_that_has_hung_up_is_given_back(self) -> None:
        master, terminal = os.openpty()
        writer = LogWriter(terminal, dropped_line=dropped_line)
        os.close(terminal)
        os.close(master)
        writer.put(b"line\n")
        eventually(lambda: writer.dropped == 1)
        eventually(lambda: writer._descriptor == -1)
        writer.close()

    def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(self, pipe: tuple[int, int]) -> None:
        reading, writing = pipe
        os.set_blocking(writing, False)
        writer = LogWriter(writing, dropped_line=dropped_line)
        for _ in range(500):
            writer.put(b"x" * 999 + b"\n")
        received = bytearray()
        reader = threading.Thread(target=lambda: _read_to_end(reading, received))
        reader.start()
        writer.close(timeout=10)
        os.close(writing)
        reader.join()
        assert len(received) == 500_000


def _read_to_end(descriptor: int, received: bytearray) -> None:
    while chunk := os.read(descriptor, 65536):
        received += chunk


def _read_some(descriptor: int) -> None:
    """Let a writer that is blocked go on and end."""
    received = bytearray()
    while len(received) < 500_000:
        received += os.read(descriptor, 65536)


@pytest.fixture
def logged(pipe: tuple[int, int]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Sets up JSON logs on a pipe; calling it ends them and returns the records."""
    reading, writing = pipe
    output = logs.setup("json", redact=redact, descriptor=writing)

    def records() -> list[dict[str, Any]]:
        output.close()
        os.close(writing)
        received = bytearray()
        _read_to_end(reading, received)
        return [json.loads(line) for line in received.splitlines()]

    yield records
    output.close()


Logged = Callable[[], list[dict[str, Any]]]


class TestSetup:
    def test_an_event_is_one_record(self, logged: Logged) -> None:
        emit("worker_ended", slot=3, reason="crashed")
        (record,) = logged()
        assert (record["event"], record["level"], record["slot"]) == ("worker_ended", "info", 3)
        age = datetime.now().astimezone() - datetime.fromisoformat(record["time"])
        assert timedelta(0) <= age < timedelta(seconds=30)

    def test_what_is_below_the_level_costs_nothing_and_shows_nothing(self, logged: Logged) -> None:
        emit("task_completed", logging.DEBUG, task=1)
        assert logged() == []

    def test_f86_similar_lines_are_counted_instead_of_written(self, logged: Logged) -> None:
        for number in range(1000):
            emit("database_away", logging.ERROR, number=number)
        emit("other")
        records = logged()
        assert [record["number"] for record in records if "number" in record] == list(range(10))
        assert len([record for record in records if record["event"] == "other"]) == 1

    def test_task_lines_have_a_wider_bound(self, logged: Logged) -> None:
        for number in range(1000):
            emit("task_failed", logging.WARNING, task=number)
        assert 100 <= len(logged()) <= 105

    def test_other_libraries_come_out_in_the_same_form(self, logged: Logged) -> None:
        logging.getLogger("psycopg.pool").warning('error connecting in %r: password s3"cret', "pool-1")
        logging.getLogger("asyncio").info("nobody wants to know")
        (record,) = logged()
        assert record["event"] == "message"
        assert record["logger"] == "psycopg.pool"
        assert record["text"] == "error connecting in 'pool-1': password ***"

    def test_an_exception_is_told_on_the_same_line(self, logged: Logged) -> None:
        try:
            raise KeyError("x")
        except KeyError as error:
            emit("duty_failed", logging.ERROR, duty="reap", exc_info=True)
            emit("duty_failed", logging.ERROR, duty="claim", exc_info=error)
        for record in logged():
            assert record["exception"] == "KeyError: 'x'"
            assert record["where"].startswith("test_logs.py:")

    def test_it_never_raises(self, logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
        class Nasty:
            def __str__(self) -> str:
                raise ValueError("nasty")

        emit("event", value=Nasty())
        # pytest's own handlers do raise.
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", [found for found in root.handlers if isinstance(found, logs._Handler)])
        logging.getLogger("foreign").error("%d", "no number")
        first, second = logged()
        assert first["value"] == "<Nasty: ValueError when shown>"
        assert (second["event"], second["logger"]) == ("log_line_failed", "foreign")

    def test_what_was_suppressed_is_told_even_if_it_does_not_come_again(
        self, logged: Logged, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(15):
            emit("database_away", logging.ERROR)
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 60)
        record = logged()[-1]
        assert (record["event"], record["level"], record["suppressed"]) == ("database_away", "error", 5)


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", source],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        timeout=30,
        check=False,
    )


def test_f45_the_locale_does_not_matter() -> None:
    source = (
        "from pgsched import events\n"
        "from pgsched.ops import logs\n"
        "output = logs.setup('text', redact=str)\n"
        "events.emit('event', path='gr\\xf6\\xdfe \\udc80')\n"
        "output.close()"
    )
    ended = run_python(source, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ended.returncode == 0
    assert ended.stderr.decode().endswith('event path="größe \\udc80"\n')


def test_a_line_needs_no_descriptor() -> None:
    """A process of its own, in which nothing was logged before."""
    code = """
import resource, sys
from pgsched.ops.logs import Formatter
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
for form in ("text", "json"):
    sys.stdout.buffer.write(Formatter(form, str).line(0.0, 40, "message", {"text": "two\\nlines"}))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.count(r"two\nlines")) == (0, 2), ended


def test_python_warnings_come_out_in_the_same_form() -> None:
    source = (
        "import warnings\n"
        "from pgsched import events\n"
        "from pgsched.ops import logs\n"
        "output = logs.setup('json', redact=str)\n"
        "warnings.warn('old', DeprecationWarning, stacklevel=1)\n"
        "output.close()"
    )
    (line,) = run_python(source).stderr.splitlines()
    assert "DeprecationWarning: old" in json.loads(line)["text"]


def test_a_standard_error_that_was_closed_before_the_start_is_left_alone(tmp_path: Path) -> None:
    """Its number belongs to whatever is opened next: a database connection, say."""
    place = tmp_path / "opened"
    source = (
        "import os, sys\n"
        "assert sys.stderr is None\n"
        f"assert os.open({str(place)!r}, os.O_CREAT | os.O_WRONLY) == 2\n"
        "from pgsched import events\n"
        "from pgsched.ops import logs\n"
        "output = logs.setup('text', redact=str)\n"
        "events.emit('event')\n"
        "output.close()\n"
    )
    shell = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, source],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert shell.returncode == 0
    assert place.read_bytes() == b""


def test_f13_the_process_ends_although_nobody_reads_its_standard_error() -> None:
    source = (
        "from pgsched import events\n"
        "from pgsched.ops import logs\n"
        "output = logs.setup('text', redact=str, level=10)\n"
        "for number in range(20000): events.emit('task_completed', 10, text='x' * 100)\n"
        "output.close(timeout=0.2)\n"
        "print('done', flush=True)"
    )
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=writing,
    )
    os.close(writing)
    try:
        stdout, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        os.close(reading)
    assert stdout == b"done\n"
    assert process.returncode == 0
