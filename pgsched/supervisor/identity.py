"""Who this supervisor is, read from /proc: enough to tell on the same host that a predecessor is dead."""

import os
import socket
from pathlib import Path

from pgsched.model import Identity

_STARTTIME_FIELD = 22
"""Of ``/proc/PID/stat``, counted from 1 (proc_pid_stat(5))."""


def started_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is no such process or it is a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name may hold spaces and brackets: fields count from its closing one.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[_STARTTIME_FIELD - 3])


def is_gone(pid: int, ticks: int) -> bool:
    """Whether the process with this pid and start time has ended, beyond doubt."""
    seen = started_ticks(pid)
    if seen is not None:
        return seen != ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # Another user's process, which a hidden /proc does not show us: it may well be the one.
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return " Z" in Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2][:3]
    except OSError:
        return False


def identify(processes: int, queues: tuple[str, ...], task_types: tuple[str, ...], version: str) -> Identity:
    """The identity of this very process."""
    pid = os.getpid()
    return Identity(
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        pid=pid,
        started_ticks=started_ticks(pid) or 0,
        processes=processes,
        queues=queues,
        task_types=task_types,
        version=version,
    )
