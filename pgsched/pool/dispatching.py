"""Which worker gets the next task, and when what was staged for several is sent.

Knows the slots that are open; why one opens or closes is ``workers.py``'s matter. Runs in the parent's loop and never
blocks.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from pgsched.model import Claim, TaskType
from pgsched.pool.slot import Slot
from pgsched.rules.states import SlotState

CANDIDATES: Final = 8
"""Busy workers compared for the one with the least in hand."""


class Dispatcher:
    """The slots to which tasks may be sent.

    :param newest: the task types of the app in service.
    :param on_refused: gets a slot that had no room for all that was staged for it.
    """

    def __init__(self, newest: Callable[[], Mapping[str, TaskType]], on_refused: Callable[[Slot], None]) -> None:
        self._newest = newest
        self._on_refused = on_refused
        self.idle: dict[int, Slot] = {}
        """Open slots whose worker would start a task at once."""
        self._busy: dict[int, Slot] = {}
        """Open slots with a task; the one that nothing was sent to for longest is first."""
        self._laden: dict[int, Slot] = {}
        """Slots for which something may be staged."""
        self._refused: list[Claim] = []

    def offer(self, slot: Slot) -> bool:
        """Send tasks to it from now on; False: it is not open."""
        self.withdraw(slot)
        is_open = slot.open
        if is_open:
            (self.idle if slot.state is SlotState.IDLE else self._busy)[slot.number] = slot
        return is_open

    def withdraw(self, slot: Slot) -> None:
        """Send no more tasks to it."""
        self.idle.pop(slot.number, None)
        self._busy.pop(slot.number, None)

    def choose(self, task_type: str, ahead: int, within: float) -> Slot | None:
        """The slot for the next task: an idle one, or a busy one; see :meth:`pgsched.pool.pool.Pool.dispatch`."""
        newest = self._newest()
        old = None
        for slot in self.idle.values():
            if slot.knows is newest:
                return slot
            if task_type in slot.knows or task_type not in newest:
                old = old or slot
        if old is not None or ahead <= 0:
            return old
        least, best = ahead + 1, None
        since = time.monotonic() - within
        for count, slot in enumerate(self._busy.values()):
            # With nothing sent ahead, a worker that is worn, or has an old app, comes to rest and can be replaced.
            if len(slot.sent) < least and slot.started >= since and not slot.full and slot.worn is None:
                least, best = len(slot.sent), slot
            if count >= CANDIDATES:
                # With many slots it is enough to avoid the fullest.
                break
        return best

    def staged(self, slot: Slot) -> None:
        """A task was put among those that the next flush sends to the slot."""
        self.offer(slot)
        self._laden[slot.number] = slot
        if slot.laden:
            self._flush(slot)

    def flush(self) -> list[Claim]:
        """Send what is staged; return the claims that found no room."""
        while self._laden:
            self._flush(next(iter(self._laden.values())))
        refused, self._refused = self._refused, []
        return refused

    def _flush(self, slot: Slot) -> None:
        del self._laden[slot.number]
        refused = slot.flush()
        if refused:
            self._refused += [sent.claim for sent in refused]
            self._on_refused(slot)
