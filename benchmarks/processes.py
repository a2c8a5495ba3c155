"""Processor time, memory and descriptors out of the process table.

Processor time is counted exactly by the kernel, but told in hundredths of a second.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pgsched.pool.limits import children

TICK = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """User and system time of a process, in seconds."""

    own: float
    ended: float
    """Of the processes below it that have ended and that it has waited for."""


def usage(pid: int) -> Usage:
    """What a process has used up to now.

    :raises ProcessLookupError, FileNotFoundError: it is gone.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        content = file.read()
    # The name in parentheses may contain anything, parentheses too.
    fields = content[content.rindex(b")") + 2 :].split()
    return Usage((int(fields[11]) + int(fields[12])) * TICK, (int(fields[13]) + int(fields[14])) * TICK)


def used_below(pid: int) -> float:
    """What the processes directly below one have used up to now, those that have ended included."""
    while True:
        before = usage(pid).ended
        total = before
        for each in children(pid):
            try:
                total += sum(usage(each))
            except (ProcessLookupError, FileNotFoundError):
                continue
        # One that ended meanwhile may have been counted on both sides, or on none.
        if usage(pid).ended == before:
            return total


def pages(pid: int) -> dict[str, int]:
    """Bytes of a process's memory by kind, as ``/proc/PID/smaps_rollup`` names them; of a zombie none."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines)}


def unique(memory: Mapping[str, int]) -> int:
    """What of these pages nobody else has."""
    return memory["Private_Clean"] + memory["Private_Dirty"]


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
