"""Reads the process table: who descends from whom, how much memory they use, whether a pid is still who it was.

Reads ``/proc`` and sends SIGKILL; keeps no state. A process that is gone meanwhile is simply not there. Used by the
parent and the forkserver.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final, NamedTuple

_LISTED: Final = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel lists a process's children (CONFIG_PROC_CHILDREN); else the whole table is read."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Entry(NamedTuple):
    """One row of the process table."""

    pid: int
    state: str
    """One letter; "Z" is a zombie."""
    parent: int
    group: int
    session: int
    started_ticks: int
    """Start time in clock ticks since boot: tells reused pids apart."""


def entry(pid: int) -> Entry | None:
    """The process with this id, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    # The name in parentheses may contain anything, parentheses too.
    fields = content[content.rindex(b")") + 2 :].split()
    return Entry(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def children(pid: int) -> list[int]:
    """The ids of a process's direct children, zombies included."""
    if not _LISTED:
        return [each.pid for each in _every() if each.parent == pid]
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """The ids of all processes below this one."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        found += below
        waiting += below
    return found


def group_members(group: int) -> list[Entry]:
    """The living processes of a process group."""
    return [found for found in _every() if found.group == group and found.state != "Z"]


def _every() -> Iterator[Entry]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := entry(int(name))) is not None:
            yield found


def resident(pid: int) -> int:
    """Bytes of a process's resident set; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def tree_memory(pid: int) -> tuple[list[int], int]:
    """A process with its descendants, and the sum of their resident sets, in which what they share counts for each."""
    pids = [pid, *descendants(pid)]
    return pids, sum(map(resident, pids))


def exact_memory(pids: list[int]) -> int | None:
    """Bytes that processes use together; None where that cannot be told.

    Not for every turn: the kernel walks over their page tables, which takes it some 50 ms for each GiB.
    """
    shares = [_proportional(pid) for pid in pids]
    return None if None in shares else sum(share for share in shares if share is not None)


def _proportional(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return 0 if entry(pid) is None else None
    except ProcessLookupError:
        return 0
    except OSError:
        return None
    return None


def kill_tree(pid: int) -> list[int]:
    """Send SIGKILL to a worker, its process group and its descendants in other groups.

    :return: those descendants; they may become children of a subreaper, who has to collect them.
    """
    # Before the worker dies: afterwards nobody knows any more whose these were.
    below = [found for found in map(entry, descendants(pid)) if found is not None]
    kill_group(pid)
    # A task may have taken the worker to another group of its session.
    send(pid, signal.SIGKILL)
    for found in below:
        if found.group != pid and is_same(found.pid, found.started_ticks):
            send(found.pid, signal.SIGKILL)
    return [found.pid for found in below]


def kill_group(group: int) -> None:
    """Send SIGKILL to what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def is_same(pid: int, started_ticks: int) -> bool:
    """Whether the process with this id is the one that started then."""
    found = entry(pid)
    return found is not None and found.started_ticks == started_ticks
