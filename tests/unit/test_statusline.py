"""The line that ``systemctl status`` shows, by a clock that is moved by hand."""

import asyncio
import contextlib
import math
import socket
from pathlib import Path

import pytest

from pgsched.model import Claim, Verdict, VerdictKind
from pgsched.ops import telemetry as telemetry_module
from pgsched.ops.notify import Notifier
from pgsched.ops.statusline import StatusLine
from pgsched.ops.telemetry import Telemetry
from tests.support import eventually_async

CLAIM = Claim(12, 7, "compress", "default", 0, "{}", 1, 3, None, 0.2, "2026-01-01")


def test_running_queued_and_rate() -> None:
    now = 100.0
    line = StatusLine(lambda: now)
    assert line.text() == "starting: 0 running, - queued, 0.0 completed/s"
    line.state = "running"
    line.sampled("active", 3.0, {})
    for queue, state, depth in (
        ("a", "queued", 1000),
        ("b", "queued", 234),
        ("b", "processing", 7),
        ("a", "queued", 2000),
    ):
        line.sampled("queue_depth", depth, {"queue": queue, "state": state})
    line.sampled("oldest_due_seconds", 9.0, {"queue": "a"})
    line.completed(3000)
    line.completed(1)
    now += 2.0
    assert line.text() == "running: 3 running, 2,234 queued, 1,500.5 completed/s"
    now += 2.0
    line.outage = True
    assert line.text() == "running: 3 running, 2,234 queued, 0.0 completed/s; the database is away"
    # In an outage nobody knows, and one queue is as bad as all.
    line.sampled("queue_depth", math.nan, {"queue": "a", "state": "queued"})
    assert ", - queued, " in line.text()
    line.sampled("queue_depth", 0, {"queue": "a", "state": "queued"})
    assert ", 234 queued, " in line.text()
    line.outage = False
    line.stuck = ["claims", "slots"]
    assert line.text().endswith(" completed/s; stuck: claims, slots")


async def test_the_manager_hears_of_it_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "STATUS_INTERVAL", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        notifier = Notifier(str(tmp_path / "notify"))
        telemetry = Telemetry(None, notifier)
        telemetry.sampled("active", 2)
        telemetry.sampled("queue_depth", 5, queue="a", state="queued")
        verdicts = [Verdict(CLAIM, kind, 0.5, 0.0) for kind in (VerdictKind.COMPLETED, VerdictKind.FAILED)]
        telemetry.settled(verdicts, fenced=0, seconds=0.1)
        running = asyncio.create_task(telemetry.run())
        heard: list[str] = []

        def hear() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.append(manager.recv(4096).decode())
            return len(heard) >= 3

        await eventually_async(hear)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        notifier.close()
    assert all(line.startswith("STATUS=starting: 2 running, 5 queued, ") for line in heard)
    # The one that was completed counts in the first line alone.
    assert not heard[0].endswith(" 0.0 completed/s")
    assert heard[1].endswith(" 0.0 completed/s")
