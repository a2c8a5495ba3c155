"""Who this supervisor is, read from /proc: enough to tell on the same host that a predecessor is dead."""

import os
import socket
from pathlib import Path

from pgsched.model import Identity
from pgsched.pool.limits import entry


def is_gone(pid: int, ticks: int) -> bool:
    """Whether the process with this pid and start time has ended, beyond doubt; a zombie has."""
    found = entry(pid)
    if found is not None:
        return found.state in ("Z", "X") or found.started_ticks != ticks
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Somebody is there whom /proc hides from us; it may well be the one.
    return False


def identify(
    processes: int, queues: tuple[str, ...], task_types: tuple[str, ...], version: str, partitions: tuple[int, ...] = ()
) -> Identity:
    """The identity of this very process."""
    me = entry(os.getpid())
    assert me is not None, "/proc shows every process to itself"
    return Identity(
        host=socket.gethostname(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.stat("/proc/self/ns/pid").st_ino,
        pid=me.pid,
        started_ticks=me.started_ticks,
        processes=processes,
        queues=queues,
        task_types=task_types,
        version=version,
        partitions=partitions,
    )
