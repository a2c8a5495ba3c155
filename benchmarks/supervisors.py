"""Runs ``python -m pgsched run`` as a real process for a measurement, and sees that nothing of it is left.

The environment is the caller's without its ``PGSCHED_`` variables, which would change what is measured.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.processes import usage, used_below
from pgsched.pool.limits import children, entry

ROOT = Path(__file__).resolve().parent.parent
START_WITHIN = 60.0
STOP_WITHIN = 30.0
LOOK_EVERY = 0.01


class Supervisor:
    """A running supervisor.

    :param process: its first process.
    :param log: where it writes one JSON object an event.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.log = log
        self._address: str | None = None

    def metrics(self) -> dict[str, float]:
        """Every series of its ``/metrics`` as it stands there, with its labels: ``pgsched_slots{state="idle"}``."""
        if self._address is None:
            self._address = str(self._event("metrics_served")["address"])
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, value in pairs}

    def buckets(self, histogram: str) -> dict[float, float]:
        """A histogram of its metrics over all labels: upper bounds, and how many values lie at or below each."""
        return buckets_of(self.metrics(), histogram)

    def cpu_seconds(self) -> float:
        """User and system time of the parent alone."""
        return usage(self.pid).own

    def workers_cpu_seconds(self) -> float:
        """That of all processes below it: the workers, those that have ended too, and the forkserver."""
        return used_below(self.pid)

    def workers(self) -> list[int]:
        """The pids of the workers."""
        return self._below()[1:]

    def forkserver(self) -> int:
        """The pid of the forkserver."""
        return self._below()[0]

    def _below(self) -> list[int]:
        """The living processes directly below it, oldest first: the forkserver, from which the others come."""
        below = [found for pid in children(self.pid) if (found := entry(pid)) is not None and found.state != "Z"]
        below.sort(key=lambda found: found.started_ticks)
        return [found.pid for found in below]

    def wait_registered(self) -> None:
        """Wait until it has entered itself in the database and its workers are about to take tasks.

        :raises RuntimeError: it ended instead, or takes too long.
        """
        deadline = time.monotonic() + START_WITHIN
        while self._event("registered") == {}:
            if self.process.poll() is not None:
                raise RuntimeError(f"the supervisor ended with exit code {self.process.returncode}: {self._last()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the supervisor did not register within {START_WITHIN:g} s: {self._last()}")
            time.sleep(LOOK_EVERY)

    def stop(self) -> None:
        """End it by SIGTERM, which drains it; by SIGKILL when that takes too long. Safe when it has ended."""
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait()

    def _event(self, name: str) -> dict[str, object]:
        """The first event of that name in the log; empty if there is none yet."""
        for line in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == name:
                    return dict(event)
        return {}

    def _last(self) -> str:
        return (self.log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]


@contextmanager
def supervisor(
    dsn: str,
    processes: int,
    *options: str,
    app: str = "benchmarks.tasks:app",
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[Supervisor]:
    """Run a supervisor until the body ends.

    :param options: more of ``pgsched run``.
    :param env: on top of our own environment.
    :param log: where its log is kept; default: it is not.
    :raises RuntimeError: it does not start.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PGSCHED_")}
    command = [sys.executable, "-m", "pgsched", "run", app, "--processes", str(processes), "--log-format", "json"]
    with tempfile.TemporaryDirectory(prefix="pgsched-bench-") as directory:
        path = log or Path(directory) / "log"
        with path.open("wb") as file:
            process = subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env={**ours, "PGSCHED_METRICS_ADDRESS": "127.0.0.1:0", **(env or {}), "PGSCHED_DSN": dsn},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                # A terminal's Ctrl-C is for us; we then end it in order.
                start_new_session=True,
            )
        running = Supervisor(process, path)
        try:
            running.wait_registered()
            yield running
        finally:
            running.stop()


def buckets_of(metrics: Mapping[str, float], histogram: str) -> dict[float, float]:
    """See `Supervisor.buckets`."""
    found: dict[float, float] = {}
    for series, value in metrics.items():
        name, _, labels = series.partition("{")
        if name == f"{histogram}_bucket" and (match := re.search(r'\ble="([^"]+)"', labels)):
            bound = float(match[1])
            found[bound] = found.get(bound, 0.0) + value
    return found
