"""Logs, metrics, HTTP and systemd put together, as the command line does it."""

import asyncio
import errno
import logging
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsched.config import Settings
from pgsched.errors import ResourceError
from pgsched.events import emit
from pgsched.ops.directory import VARIABLE
from pgsched.ops.observation import Observation
from tests.scraped import Scraped
from tests.support import eventually_async


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """systemd's socket; calling it returns the messages that came since the last call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "20000")

        def received() -> list[str]:
            messages = []
            while True:
                try:
                    messages.append(receiving.recv(4096).decode())
                except BlockingIOError:
                    return messages

        yield received


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    yield
    logging.getLogger("pgsched").setLevel(logging.NOTSET)


def settings(address: str) -> Settings:
    return Settings.parse("tasks:app", {"metrics_address": address, "processes": 1})


def well() -> tuple[bool, dict[str, object]]:
    return True, {"state": "running"}


class Stderr:
    """All that was written to standard error while it is open.

    A file of its own: what capfd reads it also cuts off, and with it what a thread writes in between.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def text(self) -> str:
        return self._path.read_text()

    def __enter__(self) -> "Stderr":
        self._saved = os.dup(2)
        with self._path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)


@pytest.fixture
def stderr(tmp_path_factory: pytest.TempPathFactory) -> Stderr:
    return Stderr(tmp_path_factory.mktemp("stderr") / "text")


async def fetch(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text: bytes = answer.read()
        return text.decode()

    return await asyncio.to_thread(get)


async def test_it_serves_logs_notifies_and_leaves_nothing(
    tmp_path: Path, manager: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, stderr: Stderr
) -> None:
    with stderr:
        monkeypatch.setenv(VARIABLE, str(tmp_path / "metrics"))
        observation = Observation(settings("127.0.0.1:0"), redact=lambda text: text.replace("secret", "***"))
        assert observation.recorder == "pgsched.ops.recorder:make"
        assert observation.preparation == "pgsched.ops.guarded:prepare"
        assert "NOTIFY_SOCKET" not in os.environ
        await observation.start(well)
        telemetry = observation.telemetry
        telemetry.event("pool_started", logging.INFO, task_types=["compress"])
        telemetry.event("odd", logging.WARNING, dsn="password=secret")
        emit("database_lost", logging.WARNING, error="connection refused")
        telemetry.event("state", logging.INFO, state="running")
        emit("database_back", logging.WARNING, seconds=3)
        telemetry.ready()
        await eventually_async(lambda: "metrics_served" in stderr.text)
        url = stderr.text.split("metrics_served address=")[1].split()[0]
        scraped = Scraped(await fetch(f"{url}/metrics"))
        assert scraped.value("pgsched_claimed_total", task_type="compress") == 0
        assert scraped.value("pgsched_database_outages_total") == 1
        assert await fetch(f"{url}/healthz") == '{"state": "running"}\n'
        messages: list[str] = []
        await eventually_async(lambda: messages.extend(manager()) or messages.count("WATCHDOG=1") >= 3)  # type: ignore[func-returns-value]
        assert [message for message in messages if message != "WATCHDOG=1"] == [
            "STATUS=running: 0 running, - queued, 0.0 completed/s; the database is away",
            "READY=1\nSTATUS=running: 0 running, - queued, 0.0 completed/s",
        ]
        telemetry.event("state", logging.INFO, state="draining")
        assert "STOPPING=1\nSTATUS=draining: 0 running, - queued, 0.0 completed/s" in manager()
        await observation.close()
        assert 'odd dsn="password=***"' in stderr.text
        assert "secret" not in stderr.text
        assert [path.name for path in (tmp_path / "metrics").iterdir()] == []
        assert os.environ[VARIABLE] == str(tmp_path / "metrics")
        with pytest.raises(OSError, match="refused"):
            await fetch(f"{url}/healthz")


async def test_who_is_stuck_starves_the_watchdog_and_says_so(manager: Callable[[], list[str]], stderr: Stderr) -> None:
    with stderr:
        observation = Observation(settings("none"), redact=str)
        parts = ["claims", "lease"]
        asked = 0

        def stuck() -> list[str]:
            nonlocal asked
            asked += 1
            return list(parts)

        await observation.start(well, stuck)
        await eventually_async(lambda: asked >= 5 and "stuck" in stderr.text)
        assert manager() == ["STATUS=starting: 0 running, - queued, 0.0 completed/s; stuck: claims, lease"]
        parts.clear()
        messages: list[str] = []
        await eventually_async(lambda: messages.extend(manager()) or "WATCHDOG=1" in messages)  # type: ignore[func-returns-value]
        await observation.close()
        assert [line.split("stuck ")[1] for line in stderr.text.splitlines()] == ['parts="claims, lease"', "parts=none"]


async def test_without_an_address_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    observation = Observation(settings("none"), redact=str)
    assert observation.recorder is None
    assert observation.preparation is None
    assert VARIABLE not in os.environ
    await observation.start(well)
    emit("database_lost", logging.WARNING)
    await observation.close()


async def test_f80_an_address_in_use_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        observation = Observation(settings(f"127.0.0.1:{taken.getsockname()[1]}"), redact=str)
        with pytest.raises(ResourceError, match="this address is in use"):
            await observation.start(well)
        await observation.close()
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        ResourceError, match=f"^{VARIABLE} '{tmp_path}': no room for metrics .No space left on device.$"
    ):
        Observation(settings("127.0.0.1:0"), redact=str)
    assert not list(tmp_path.iterdir())
