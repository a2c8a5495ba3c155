"""What the end of a worker tells about the attempt that it took along. Runs in the parent.

The words for an exit status, and the kernel's own counters of out-of-memory kills: whether a SIGKILL came from there
is said only where a counter proves it.
"""

import contextlib
import math
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

from pgsched.model import Failure

_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_ENDED_WITHIN: Final = 10.0
"""Seconds after a kill for which the death of its victim may still be to come."""


class Death(NamedTuple):
    """How a process ended, as the kernel reports it."""

    exit_code: int | None
    signal: int | None
    cpu_seconds: float
    """Of the process and its ended children, over its whole life."""
    peak_memory: int
    """Bytes."""

    @property
    def words(self) -> str:
        """``killed by signal 9 (SIGKILL)``, or ``exited with code 3``."""
        if self.signal is None:
            return f"exited with code {self.exit_code}"
        name = ""
        with contextlib.suppress(ValueError):
            name = f" ({signal.Signals(self.signal).name})"
        return f"killed by signal {self.signal}{name}"


def collect(pid: int) -> Death | None:
    """Collect a child that has ended, or None while it runs.

    :raises ChildProcessError: it is no child of ours, or somebody else has collected it.
    """
    found, status, usage = os.wait4(pid, os.WNOHANG)
    if not found:
        return None
    code = os.waitstatus_to_exitcode(status)
    return Death(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_memory=usage.ru_maxrss * 1024,
    )


LOST: Final = Death(None, None, 0.0, 0)
"""Stands for the end of a child that somebody else has collected."""


def failure(
    death: Death,
    error: str | None = None,
    *,
    cpu_before: float = 0.0,
    out_of_memory: bool | None = False,
    stderr: str | None = None,
    stack: str | None = None,
) -> Failure:
    """The record of an attempt that ended with its worker.

    :param error: why we ended it; None if we did not.
    :param cpu_before: CPU seconds that earlier attempts in the same worker had used.
    """
    if error is None:
        error = death.words if death.signal is not None else f"{death.words} during the task"
        if death is LOST:
            error = "worker ended, and its exit status was taken by another part of this process"
    return Failure(
        error=error,
        exit_code=death.exit_code,
        signal=death.signal,
        out_of_memory=out_of_memory,
        cpu_seconds=max(death.cpu_seconds - cpu_before, 0.0),
        peak_memory=death.peak_memory or None,
        stderr=stderr,
        stack=stack,
    )


class OutOfMemory:
    """The kernel's counters of processes that it killed for memory, in our cgroup and on the whole host."""

    def __init__(self) -> None:
        self._files = [path for path in _cgroup_files() if path.is_file()]
        self._seen = self._read()
        self._rose_at = -math.inf

    def look(self, now: float) -> None:
        """Forget kills up to now, but for the time of the last; to be called every second or so."""
        found = self._read()
        if any(new > old for old, new in zip(self._seen, found, strict=True)):
            self._rose_at = now
        self._seen = found

    def killed(self, now: float) -> bool | None:
        """Whether a worker that just died by SIGKILL was the kernel's victim; None when that is not known."""
        before, found = self._seen, self._read()
        if any(new > old for old, new in zip(before[1:], found[1:], strict=True)):
            return True
        # The kernel counts before it ends a process, which takes seconds where that has much memory.
        if now < self._rose_at + _ENDED_WITHIN:
            return None
        # The host's counter says nothing about who was killed, but if it stands still it was nobody.
        return False if found[0] == before[0] >= 0 else None

    def _read(self) -> list[int]:
        return [_counter(Path("/proc/vmstat")), *map(_counter, self._files)]


def _cgroup_files() -> list[Path]:
    """Where cgroup v2 and v1 may count the kills in our group."""
    files = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # In a container the path may be the host's, and the group itself is mounted at the root.
            files += [_CGROUP_ROOT / path.lstrip("/") / "memory.events", _CGROUP_ROOT / "memory.events"]
        elif "memory" in controllers.split(","):
            mount = _CGROUP_ROOT / "memory"
            files += [mount / path.lstrip("/") / "memory.oom_control", mount / "memory.oom_control"]
    return files


def _counter(path: Path) -> int:
    """The number behind ``oom_kill``; -1 when there is none."""
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return -1
