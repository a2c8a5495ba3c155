"""Which slots go when the pool becomes smaller, and which come when it becomes larger. Pure but for the marks on slots.

A slot that is to go keeps its place until its task has ended, and is the first to be opened again; so there are never
more tasks at once than the larger of the two sizes.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pgsched.pool.slot import Slot
from pgsched.rules.states import SlotState

RESIZED: Final = "resized"

_LAST: Final = (SlotState.BUSY, SlotState.IDLE, SlotState.BOOTING)
"""In what order slots are kept."""


def closed(slots: Iterable[Slot], size: int) -> list[Slot]:
    """Those that are too many: at first the ones without a task, then those whose task began last."""
    open_slots = [slot for slot in slots if not slot.surplus]
    open_slots.sort(key=_worth, reverse=True)
    return open_slots[size:]


def _worth(slot: Slot) -> tuple[int, float, int]:
    rank = len(_LAST) - _LAST.index(slot.state) if slot.state in _LAST else 0
    return rank, -slot.started if slot.state is SlotState.BUSY else 0.0, -slot.number


def opened(slots: Mapping[int, Slot], size: int, make: Callable[[int], Slot]) -> Iterator[Slot]:
    """Those that are missing: at first the ones that were to go and are still there, then new ones."""
    missing = size - sum(not slot.surplus for slot in slots.values())
    going = sorted((slot for slot in slots.values() if slot.surplus), key=_worth, reverse=True)
    for slot in going[: max(missing, 0)]:
        slot.surplus = False
        if slot.reason == RESIZED and slot.state in (SlotState.IDLE, SlotState.BUSY):
            slot.reason = None
        yield slot
    free = (number for number in itertools.count() if number not in slots)
    for _ in range(missing - len(going)):
        yield make(next(free))
