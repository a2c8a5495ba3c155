"""Reads the metrics files of the supervisor and its slots into one set of series, whatever state they are in.

A file that cannot be read is left out and reported once; it costs no scrape. Files of processes that the tasks
started themselves are named by their process number: when such a process is gone, they are added to one
file, so that their number does not grow. Runs in a thread of the parent, never in its loop.
"""

import contextlib
import math
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import prometheus_client.mmap_dict
from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from pgsched.ops.directory import RESERVED, reserve

_NAME = re.compile(
    r"(?P<type>counter|summary|histogram|gauge_(?:live)?(?:all|min|max|sum|mostrecent))_(?P<identity>[^_]+)\.db"
)
ENDED = "ended"
"""Identity of the file that takes over the counts of processes that are gone."""

OURS = "pgsched_"
"""What our own gauges' names begin with."""

RACES = 3
"""How often one scrape may meet a file that disappears while it is read."""

NEW = 5.0
"""Seconds for which a file may be empty: its maker creates it first and then gives it its size."""

Report = Callable[[str, str], None]
"""Receives the name of a file or a metric, and what is wrong with it."""


class DirectoryCollector(Collector):
    """prometheus_client's multiprocess collector, for files that may be broken.

    :param report: called once for each thing that had to be left out.
    """

    def __init__(self, directory: Path, report: Report) -> None:
        self._directory = directory
        self._report = report
        self._broken: dict[str, tuple[int, int, int]] = {}
        # A scrape must not see a file and its sum in the file of ended processes both, or neither.
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Merge all files that can be read.

        :raises FileNotFoundError: somebody has removed the directory, and all figures with it.
        """
        with self._lock:
            # An answer without them would look as if nothing had ever been counted.
            os.stat(self._directory)
            files = self._files()
            for _ in range(RACES):
                try:
                    return _known(_merge(files))
                except Exception:
                    # One is broken, or a new worker has just removed its predecessor's gauges.
                    files = [path for path in files if self._readable(path)]
            return _known(_merge(files))

    def tidy(self) -> None:
        """Add up the files of processes that are gone.

        :raises Exception: that has failed for at least one of them; the last error.
        """
        failed: Exception | None = None
        with self._lock:
            for path in self._files():
                try:
                    self._tidy_file(path)
                except Exception as error:
                    # Where there is no room to add one up, to remove another makes some.
                    failed = error
        if failed is not None:
            raise failed

    def _tidy_file(self, path: str) -> None:
        match = _NAME.fullmatch(os.path.basename(path))
        if match is None or not match["identity"].isdecimal() or _alive(int(match["identity"])):
            return
        if not match["type"].startswith("gauge"):
            if not self._readable(path):
                return
            _add_up(path, str(self._directory / f"{match['type']}_{ENDED}.db"))
        os.unlink(path)

    def _files(self) -> list[str]:
        """The paths of what looks like a metrics file and is not known to be broken."""
        files = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.endswith(".db") or self._broken.get(entry.path) == _version(entry.path):
                        continue
                    objection = _objection(entry)
                    if objection is None:
                        files.append(entry.path)
                    elif objection:
                        self._leave_out(entry.path, objection)
        return files

    def _readable(self, path: str) -> bool:
        try:
            _merge([path])
        except FileNotFoundError:
            return False
        except Exception as error:
            self._leave_out(path, f"cannot be read: {type(error).__name__}: {error}")
            return False
        return True

    def _leave_out(self, path: str, reason: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            version = _version(path)
            if self._broken.get(path) is None:
                self._report(os.path.basename(path), reason)
            self._broken[path] = version


def _version(path: str) -> tuple[int, int, int]:
    """Changes when a file is replaced or repaired; writes into a mapping need not show."""
    status = os.stat(path, follow_symlinks=False)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _objection(entry: os.DirEntry[str]) -> str | None:
    """Why a file is not even tried; None when it is, and empty when that is as it should be.

    :raises FileNotFoundError: it has just been removed.
    """
    if _NAME.fullmatch(entry.name) is None:
        return "is not named like a metrics file"
    status = entry.stat()
    # A FIFO would block whoever opens it.
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if not status.st_size and time.time() - status.st_mtime < NEW:
        return ""
    try:
        used, size = _extent(entry.path)
    except PermissionError:
        return "may not be read"
    # prometheus_client would allocate whatever stands there.
    return None if 0 <= used <= size else "is cut short, or not a metrics file"


def _extent(path: str) -> tuple[int, int]:
    """The bytes in use, -1 if the file is too short to say, and the file's size."""
    with open(path, "rb") as file:
        head = file.read(4)
        size = os.fstat(file.fileno()).st_size
    return int.from_bytes(head, sys.byteorder, signed=True) if len(head) == 4 else -1, size


def _merge(paths: list[str]) -> list[Metric]:
    merge: Any = MultiProcessCollector.merge
    return list(merge(paths))


def _known(metrics: list[Metric]) -> list[Metric]:
    """Without our own gauges that are unknown now, which are NaN in the files: nothing can be taken out of those."""
    for metric in metrics:
        if metric.type == "gauge" and metric.name.startswith(OURS):
            metric.samples = [sample for sample in metric.samples if not math.isnan(sample.value)]
    return [metric for metric in metrics if metric.samples]


def _add_up(source: str, target: str) -> None:
    size, needed = RESERVED, _extent(source)[0]
    if os.path.exists(target):
        needed += _extent(target)[0]
    while size < needed:
        size *= 2
    reserve(Path(target), size)
    mapped: Any = prometheus_client.mmap_dict.MmapedDict
    ended = mapped(target)
    try:
        for key, value, _, _ in mapped.read_all_values_from_file(source):
            ended.write_value(key, ended.read_value(key)[0] + value, 0.0)
    finally:
        ended.close()


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
