"""The four measures, taken of any peer in the same way, through files that its tasks write.

The counts and moments are those of the tasks' own lines; the peer is asked only for the end of a drain, which is when
its queue knows of nothing any more.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import stamps
from benchmarks.peers import work
from benchmarks.peers.peer import Check, Peer

LATE = 120.0
"""Seconds after which what is waited for will not come."""
REST = (0.02, 0.04)
"""Seconds between two samples, in which the workers come to rest. Not part of what is measured."""


class Measures:
    """One peer under measurement, its workers running."""

    def __init__(self, peer: Peer, check: Check) -> None:
        self._peer = peer
        self._check = check
        self._directory = peer.place.directory

    def warm_up(self, tasks: int) -> None:
        """Let the workers start, connect and run something."""
        for _ in range(tasks):
            self._pickup()

    def settle(self) -> None:
        """Wait until the queue knows that everything has ended.

        Workers that are killed before leave claims behind, which the next ones would have to wait for.
        """
        self._until(lambda: not self._peer.busy(), "the queue did not become empty")

    def drain(self, tasks: int) -> float:
        """Tasks a second, of so many no-ops that were enqueued before the workers began.

        Counted from the moment at which a tenth has run, so that starting is left out.
        """
        counted = self._directory / work.COUNTED
        self._until(lambda: _size(counted) >= tasks / 10, "the drain did not begin")
        first, began = _size(counted), time.monotonic()
        self._until(lambda: _size(counted) >= tasks, "the drain did not end")
        self.settle()
        if _size(counted) != tasks:
            raise RuntimeError(f"{_size(counted)} runs of {tasks} tasks")
        return (tasks - first) / (time.monotonic() - began)

    def latency(self, samples: int) -> list[float]:
        """Milliseconds from the return of the enqueue to the first line of the task, of one task after the other."""
        return [self._pickup() for _ in range(samples)]

    def cpu(self, tasks: int) -> float:
        """Tasks a second, of so many that compute, from the first one's first line to the last one's last."""
        self._peer.enqueue("burn", tasks)
        path = self._directory / work.BURNED
        self._until(lambda: stamps.count(path) >= tasks, "the tasks did not end", every=0.05)
        runs = stamps.read(path)
        return tasks / (max(ended for _, ended in runs) - min(began for began, _ in runs)) * 1e9

    def recovery(self, patience: float) -> float | None:
        """Seconds from the SIGKILL of the process that runs a task until that task starts again.

        :return: None when it has not by then.
        """
        path = self._directory / work.LINGERED
        self._peer.enqueue_one("linger")
        self._until(lambda: stamps.count(path) >= 1, "the task did not start")
        # It shall be under way for everybody: claimed, committed, reported.
        time.sleep(0.5)
        ((pid, _),) = stamps.read(path)
        killed = stamps.now()
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            _until(lambda: stamps.count(path) >= 2, "", patience, 0.005)
            return (stamps.read(path)[1][1] - killed) / 1e9
        return None

    def _pickup(self) -> float:
        path = self._directory / work.STARTED
        before = stamps.count(path)
        self._peer.enqueue_one("stamp")
        returned = stamps.now()
        # Looking at once would take the processor from what is measured.
        time.sleep(REST[0])
        self._until(lambda: stamps.count(path) > before, "the task did not start")
        time.sleep(random.uniform(*REST))
        return (stamps.read(path)[before][0] - returned) / 1e6

    def _until(self, condition: Callable[[], bool], failure: str, every: float = 0.002) -> None:
        """Wait, while the workers live."""

        def met() -> bool:
            self._check()
            return condition()

        _until(met, failure, LATE, every)


def _until(condition: Callable[[], bool], failure: str, patience: float, every: float) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{failure} within {patience:g} s")
        time.sleep(every)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
