"""Holds tasks to their limits and dying workers to their word: time, memory, grace, boot time.

Everything is measured from outside, so that no code of a task can be in the way. Runs in the parent; a turn reads the
process table only for tasks that have a memory limit.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pgsched.model import OutcomeKind
from pgsched.pool import limits
from pgsched.pool.sent import Sent
from pgsched.pool.slot import Slot

BOOT_TIMEOUT: Final = "boot_timeout"
SAMPLE: Final = 0.05
"""Seconds between two looks at the memory of a task that has a limit."""
MEMORY_GRACE: Final = 0.5
"""Seconds from the soft signal to SIGKILL for such a task, at most: it may go on growing meanwhile."""
_SPARING: Final = 50
"""After an exact look at a task's memory there is none for so many times as long: the loop has other duties."""
_MIB: Final = 1024 * 1024


class _Look(NamedTuple):
    """An exact one at the memory of a task."""

    task: Sent | None
    until: float
    """When there may be another, monotonic."""


class Enforcer:
    """One turn looks at every slot.

    :param look: finds out which task a slot's worker is at.
    :param stop: tells the running task to stop: slot, kind, text, seconds until SIGKILL.
    :param kill: sends SIGKILL: slot, reason.
    :param grace: seconds from the soft signal to SIGKILL.
    """

    def __init__(
        self,
        slots: Mapping[int, Slot],
        look: Callable[[Slot], None],
        stop: Callable[[Slot, OutcomeKind, str, float], None],
        kill: Callable[[Slot, str], None],
        grace: float,
    ) -> None:
        self._slots = slots
        self._look = look
        self._stop = stop
        self._kill = kill
        self._grace = grace
        self._looks: dict[int, _Look] = {}
        """By slot: the last exact one."""

    def turn(self, now: float) -> float:
        """Enforce what is due; return when to look again, monotonic."""
        following = math.inf
        for slot in list(self._slots.values()):
            if slot.running is not None:
                self._look(slot)
            self._enforce(slot, now)
            following = min(following, slot.kill_at)
            if slot.order is None:
                following = min(following, slot.deadline, math.inf if slot.memory is None else now + SAMPLE)
        return following

    def _enforce(self, slot: Slot, now: float) -> None:
        if now >= slot.kill_at:
            # A worker without a reason to end is one that does not boot.
            self._kill(slot, BOOT_TIMEOUT)
        elif slot.order is not None or slot.running is None:
            return
        elif now >= slot.deadline:
            text = f"timed out after {slot.running.timeout:g} s"
            self._stop(slot, OutcomeKind.TIMED_OUT, text, self._grace)
        elif slot.memory is not None and slot.process is not None and slot.process.pid is not None:
            used = self._memory(slot, slot.process.pid, slot.memory)
            if used > slot.memory:
                text = f"over memory: {_size(used)} used, limit {_size(slot.memory)}"
                self._stop(slot, OutcomeKind.OVER_MEMORY, text, min(self._grace, MEMORY_GRACE))

    def _memory(self, slot: Slot, pid: int, limit: int) -> int:
        """Bytes that a worker and what its task has started use together, found out at little cost to the loop."""
        pids, total = limits.tree_memory(pid)
        if total <= limit or len(pids) == 1:
            return total
        last, began = self._looks.get(slot.number), time.monotonic()
        if last is not None and last.task is slot.running and began < last.until:
            # It has found this very task within its limit, and stands.
            return limit
        exact = limits.exact_memory(pids)
        ended = time.monotonic()
        self._looks[slot.number] = _Look(slot.running, ended + max(SAMPLE, _SPARING * (ended - began)))
        return total if exact is None else exact


def _size(count: int) -> str:
    return f"{count / _MIB:.0f} MiB" if count >= 10 * _MIB else f"{count / _MIB:.1f} MiB"
