"""systemd messages, received on real datagram sockets."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsched.ops.notify import MOST, Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The service manager's socket, and how NOTIFY_SOCKET names it."""
    receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiving.settimeout(30)
    if request.param == "path":
        name = str(tmp_path / "notify")
        receiving.bind(name)
    else:
        name = f"@pgsched-test-{os.getpid()}"
        receiving.bind("\0" + name[1:])
    yield receiving, name
    receiving.close()


def test_each_message_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    receiving, name = manager
    notifier = Notifier(name)
    assert notifier.ready("running\n4 workers")
    assert notifier.status("idle")
    assert notifier.alive()
    assert notifier.stopping("draining")
    assert [receiving.recv(4096).decode() for _ in range(4)] == [
        "READY=1\nSTATUS=running 4 workers",
        "STATUS=idle",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining",
    ]
    notifier.close()
    assert not notifier.alive()


def test_a_status_is_one_short_line(manager: tuple[socket.socket, str]) -> None:
    receiving, name = manager
    notifier = Notifier(name)
    assert notifier.status("x" * 100_000)
    assert receiving.recv(4096) == b"STATUS=" + b"x" * MOST
    notifier.close()


def test_reloading_carries_the_time_that_systemd_asks_for(manager: tuple[socket.socket, str]) -> None:
    receiving, name = manager
    notifier = Notifier(name)
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    first, second = receiving.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    notifier.close()


def test_a_manager_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"))
        started = time.monotonic()
        sent = [notifier.alive() for _ in range(5000)]
        assert time.monotonic() - started < 20
        assert sent[0]
        assert not sent[-1]
        notifier.close()


def test_that_it_is_ready_is_said_until_it_is_heard_or_untrue(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.setblocking(False)
        notifier = Notifier(str(tmp_path / "notify"))

        def fill() -> None:
            while notifier.alive():
                pass

        fill()
        assert not notifier.ready("running")
        assert not notifier.status("running")
        assert set(_waiting(receiving)) == {"WATCHDOG=1"}
        assert notifier.status("busy")
        assert notifier.status("idle")
        assert _waiting(receiving) == ["READY=1\nSTATUS=busy", "STATUS=idle"]
        fill()
        assert not notifier.ready()
        assert not notifier.stopping()
        _waiting(receiving)
        notifier.status("stopping")
        assert _waiting(receiving) == ["STATUS=stopping"]
        fill()
        assert not notifier.ready()
        assert not notifier.reloading()
        _waiting(receiving)
        notifier.status("reloading")
        assert _waiting(receiving) == ["STATUS=reloading"]
        notifier.close()


def _waiting(receiving: socket.socket) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(receiving.recv(4096).decode())
    return found


def test_a_manager_that_comes_back_is_reached_again(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    notifier = Notifier(name)
    assert not notifier.alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(name)
        assert notifier.alive()
        assert receiving.recv(100) == b"WATCHDOG=1"
    notifier.close()


def test_without_a_manager_nothing_happens() -> None:
    notifier = Notifier.from_environment({})
    assert notifier.watchdog_interval is None
    assert not notifier.ready()


def test_what_systemd_said_is_not_handed_to_workers() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier.from_environment(environ)
    assert notifier.watchdog_interval == 1.5
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("microseconds", "pid"), [("", ""), ("0", ""), ("abc", ""), ("-1", ""), ("3000000", "1"), ("٣", "")]
)
def test_a_watchdog_that_is_not_meant_for_us_is_ignored(microseconds: str, pid: str) -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    assert Notifier.from_environment(environ).watchdog_interval is None


@pytest.mark.parametrize("name", ["", "@", "relative", "vsock:2:1234"])
def test_an_address_that_is_not_a_unix_socket_means_no_manager(name: str) -> None:
    assert not Notifier.from_environment({"NOTIFY_SOCKET": name}).ready()
