"""What a worker notes about each attempt: how long it took, how late it began, how long it all was.

Runs in the worker, for every task, so it writes straight into the mapped file: no lock, no buffer, no import of
prometheus_client, whose HTTP server and the rest cost a worker 70 ms and 14 MiB. What was noted survives any
death of the worker. The files belong to the slot: a worker goes on where its predecessor stopped.

Attempts that end with the worker are noted by the parent (``Metrics.outcome``). The counts that must equal the table
to the last task are the parent's too: a worker may die between noting an attempt and reporting it.
"""

import json
import os
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pgsched.ops.directory import RESERVED, VARIABLE, reserve, slot_identity
from pgsched.ops.guarded import writer

MARGIN = 40 * 1024
"""Bytes that one more task type takes at most."""


class Measure(NamedTuple):
    """A histogram that workers fill."""

    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    """Ascending upper bounds without the infinite one."""


EXECUTION = Measure(
    "scheduler_task_execution_duration_seconds",
    "Time taken to execute a task, partitioned by type.",
    ("task_type", "status"),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
LATENCY = Measure(
    "scheduler_task_latency_seconds",
    "Delay between run_at timestamp and actual execution start.",
    ("task_type",),
    (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
TURNAROUND = Measure(
    "pgsched_task_turnaround_seconds",
    "Delay between run_at timestamp and the end of an attempt that returned.",
    ("task_type",),
    (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0),
)
COMPLETED = "completed"
"""The status of an attempt that returned; any other is a failure of some kind."""


class _Series(NamedTuple):
    """Where one labelled histogram lies in the mapped file, as indices of doubles."""

    total: int
    buckets: tuple[int, ...]
    """The last one is the infinite bucket."""


class Recorder:
    """Notes attempts in one file. Never raises once it is made.

    :param path: a file of prometheus_client's multiprocess format that nobody else writes to.
    :raises OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reserved = RESERVED
        reserve(path, RESERVED)
        self._store = writer()(os.fspath(path))
        self._doubles = memoryview(self._store._m).cast("d")
        self._execution: dict[tuple[str, str], _Series] = {}
        self._latency: dict[str, _Series] = {}
        self._turnaround: dict[str, _Series] = {}

    def ran(self, task_type: str, status: str, seconds: float, late: float) -> None:
        """Note one attempt; to be called before it is reported.

        :param status: "completed" if the function returned, else "failed", "cancelled" or "interrupted".
        :param seconds: from the attempt's start to its end.
        :param late: seconds from ``run_at`` to the attempt's start.
        """
        doubles = self._doubles
        try:
            series = self._execution[task_type, status]
            late_series = self._latency[task_type]
            whole_series = self._turnaround[task_type]
        except KeyError:
            if not self._prepare(task_type, status):
                return
            self.ran(task_type, status, seconds, late)
            return
        if late < 0.0:
            late = 0.0
        doubles[series.total] += seconds
        doubles[series.buckets[bisect_left(EXECUTION.bounds, seconds)]] += 1.0
        doubles[late_series.total] += late
        doubles[late_series.buckets[bisect_left(LATENCY.bounds, late)]] += 1.0
        if status == COMPLETED:
            whole = late + seconds
            doubles[whole_series.total] += whole
            doubles[whole_series.buckets[bisect_left(TURNAROUND.bounds, whole)]] += 1.0

    def died(self, task_type: str, status: str, seconds: float) -> None:
        """Note an attempt that ended with its worker; the parent's part."""
        if (task_type, status) in self._execution or self._prepare(task_type, status):
            series = self._execution[task_type, status]
            self._doubles[series.total] += seconds
            self._doubles[series.buckets[bisect_left(EXECUTION.bounds, seconds)]] += 1.0

    def close(self) -> None:
        """Close the file; nothing can be noted any more."""
        self._doubles.release()
        self._store.close()

    def _prepare(self, task_type: str, status: str) -> bool:
        """Give a new task type or status its places; False when the file cannot grow."""
        try:
            # What the predecessor has reserved is not known here, and its file may be large already.
            while self._store._used + MARGIN > self._reserved:
                reserve(self._path, self._reserved * 2)
                self._reserved *= 2
            self._execution[task_type, status] = self._places(EXECUTION, task_type, status)
            self._latency[task_type] = self._places(LATENCY, task_type)
            self._turnaround[task_type] = self._places(TURNAROUND, task_type)
        except (OSError, ValueError):
            return False
        # A file that grew was mapped anew; the old view would end before the new places.
        self._doubles = memoryview(self._store._m).cast("d")
        return True

    def _places(self, measure: Measure, *values: str) -> _Series:
        bounds = [repr(bound) for bound in measure.bounds] + ["+Inf"]
        buckets = [self._place(measure, "_bucket", (*measure.labels, "le"), (*values, bound)) for bound in bounds]
        return _Series(self._place(measure, "_sum", measure.labels, values), tuple(buckets))

    def _place(self, measure: Measure, suffix: str, labels: Sequence[str], values: Sequence[str]) -> int:
        named = dict(zip(labels, values, strict=True))
        key = json.dumps([measure.name, measure.name + suffix, named, measure.text], sort_keys=True)
        self._store.read_value(key)
        return int(self._store._positions[key]) // 8


class NoRecorder:
    """Notes nothing: there is no directory, or no room in it. A task is worth more than its metrics."""

    def ran(self, task_type: str, status: str, seconds: float, late: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def make(slot: int) -> Recorder | NoRecorder:
    """Make the recorder of a worker, and move the user's own metrics to the slot's files.

    :param slot: from 0; no other living worker of this supervisor has it.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        return NoRecorder()
    identity = slot_identity(slot)
    try:
        _write_as(identity)
        return Recorder(recorder_path(Path(place), identity))
    except Exception as error:
        sys.stderr.write(f"pgsched: no metrics from {identity}: {type(error).__name__}: {error}\n")
        return NoRecorder()


def recorder_path(directory: Path, identity: str) -> Path:
    """The file of an identity's recorder: beside those of prometheus_client, which must not share it."""
    return directory / f"histogram_{identity}-tasks.db"


def _write_as(identity: str) -> None:
    """Let prometheus_client, if it is loaded, write to the files of ``identity`` and not of the process number.

    Metrics that exist were made by the import of the user's module: in this process, or in the forkserver before
    it forked us. Their class asks for the identity at each write, and moves all its values when the answer has changed.
    """
    values = sys.modules.get("prometheus_client.values")
    ask = getattr(getattr(values, "ValueClass", None), "_MmapedValue__check_for_pid_change", None)
    if ask is None:
        return
    owner = os.getpid()

    def identify() -> str | int:
        # A process that the task has forked must not write to our file: it shares no lock with us.
        present = os.getpid()
        return identity if present == owner else present

    cells = dict(zip(ask.__code__.co_freevars, ask.__closure__, strict=True))
    cells["process_identifier"].cell_contents = identify
