"""Which workers to replace because they are worn, and when: a few at a time, so that the pool never stands still.

Pure but for the marks that it leaves on the slots.
"""

from collections.abc import Iterable
from typing import Final

from pgsched.pool.slot import Slot
from pgsched.rules.states import SlotState

MAX_TASKS: Final = "max_tasks"
RELOADED: Final = "reloaded"

_ABSENT: Final = (SlotState.EMPTY, SlotState.BOOTING)


def retire(slots: Iterable[Slot]) -> list[Slot]:
    """Mark the workers that leave now; return those marked just now.

    One at a time, whose replacement must be ready before the next one's turn. A worker that has run its number of
    tasks may not be given more and would only stand idle, so of these up to half of the pool leave together. Each
    leaves when it is at rest: one with a task would keep others waiting for the end of that.
    """
    every = [slot for slot in slots if not slot.surplus]
    absent = sum(slot.reason is not None or slot.state in _ABSENT for slot in every)
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
