"""Which workers to replace because they are worn, and when: a few at a time, so that the pool never stands still.

Pure but for the marks that it leaves on the slots.
"""

from collections.abc import Iterable
from typing import Final

from pgsched.pool.slot import Slot
from pgsched.rules.states import SlotState

MAX_TASKS: Final = "max_tasks"
RELOADED: Final = "reloaded"

ENDED_WITHIN: Final = 5.0
"""Seconds after SIGKILL for which the end of a worker is expected; one that the kernel cannot end is not waited for."""
_ABSENT: Final = (SlotState.EMPTY, SlotState.BOOTING)


def retire(slots: Iterable[Slot], now: float) -> list[Slot]:
    """Mark the workers that leave now; return those marked just now.

    One at a time, whose replacement must be ready before the next one's turn. A worker that has run its number of
    tasks may not be given more and would only stand idle, so of these up to half of the pool leave together. Each
    leaves when it is at rest: one with a task would keep others waiting for the end of that.
    """
    every = [slot for slot in slots if not slot.surplus]
    absent = sum(_is_replaced(slot, now) for slot in every)
    marked = []
    for slot in every:
        if slot.budget <= 0 and slot.state not in _ABSENT:
            slot.worn = MAX_TASKS
        if slot.worn is None or slot.reason is not None or slot.state is not SlotState.IDLE:
            continue
        if absent < (max(1, len(every) // 2) if slot.worn == MAX_TASKS else 1):
            slot.reason = slot.worn
            absent += 1
            marked.append(slot)
    return marked


def _is_replaced(slot: Slot, now: float) -> bool:
    """Whether its worker goes or is gone, and another one is expected."""
    return (slot.reason is not None or slot.state in _ABSENT) and now < slot.killed_at + ENDED_WITHIN
