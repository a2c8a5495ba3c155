"""Keeps the directory of the metrics from harming a task that counts with prometheus_client.

prometheus_client makes and grows a file by truncating it, which leaves a hole: a write into that on a full disk is a
SIGBUS, and a directory that is gone an error in each count. So the blocks are reserved first, and where that fails,
what has no place in the file yet is counted in memory, and seen by nobody. Runs in forkserver and workers, from before
the user's module is imported; programs that a task starts are not reached.
"""

import contextlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pgsched.ops.directory import reserve

BEGINNING = 16 * 1024
"""Bytes that a file gets at once; prometheus_client doubles it."""
ENTRY = 4 + 8 + 16
"""Bytes that a value takes at most beside its key."""


def prepare() -> None:
    """Guard what prometheus_client writes in this process and those that it forks. Never raises."""
    try:
        # First, because it asks the module for the class that is replaced here.
        writer()
        for name in ("mmap_dict", "values"):
            loaded: Any = sys.modules.get(f"prometheus_client.{name}")
            if loaded is not None:
                loaded.MmapedDict = Guarded
    except Exception as error:
        _tell("the app's own metrics are not guarded", error)


@cache
def writer() -> Any:
    """The installed prometheus_client's own writer of its file format, without the rest of the package.

    Whoever imports the rest later finds the same module there.
    """
    name = "prometheus_client.mmap_dict"
    loaded: Any = sys.modules.get(name)
    if loaded is None:
        package = importlib.util.find_spec("prometheus_client")
        folders = package.submodule_search_locations if package is not None else None
        place = Path(folders[0] if folders else "", "mmap_dict.py")
        spec = importlib.util.spec_from_file_location(name, place)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {place}")
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        sys.modules[name] = loaded
    return loaded.MmapedDict


class Guarded:
    """Has the parts of prometheus_client's ``MmapedDict`` that are used, and cannot fail: values in a file, and those
    for which it has no place."""

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        self._path = Path(filename)
        self._file: Any = None
        self._full = False
        self._elsewhere: dict[str, tuple[float, float]] = {}
        try:
            if not read_mode:
                reserve(self._path, BEGINNING)
            self._file = writer()(filename, read_mode)
        except Exception as error:
            self._give_up(error)

    @staticmethod
    def read_all_values_from_file(filename: str) -> Any:
        """What a file has."""
        return writer().read_all_values_from_file(filename)

    def read_value(self, key: str) -> Any:
        """A value and its time; both are 0 where there was none."""
        return self._file.read_value(key) if self._has(key) else self._elsewhere.setdefault(key, (0.0, 0.0))

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        """Set a value and its time."""
        if self._has(key):
            self._file.write_value(key, value, timestamp)
        else:
            self._elsewhere[key] = value, timestamp

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _has(self, key: str) -> bool:
        """Whether the file has a place for the value; gives it one if it can."""
        if self._file is None:
            return False
        needed = self._file._used + len(key.encode()) + ENTRY
        # The file grows to twice its size, and would lose its blocks if it had to grow twice at once.
        if key not in self._file._positions and not self._full and needed <= 2 * self._file._capacity:
            try:
                if needed > self._file._capacity:
                    reserve(self._path, 2 * self._file._capacity)
                self._file.read_value(key)
            except OSError as error:
                self._give_up(error)
        return key in self._file._positions

    def _give_up(self, error: Exception) -> None:
        # For good: after a growth that has failed halfway the writer's idea of the file's size may be wrong.
        self._full = True
        _tell(f"no room in {self._path.name}, the rest is not counted", error)


def _tell(what: str, error: Exception) -> None:
    # A task may have closed it.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"pgsched: {what}: {type(error).__name__}: {error}\n")
