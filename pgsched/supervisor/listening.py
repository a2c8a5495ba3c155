"""Listens for hints: somebody queued rows, or cancelled some. Everything works without it, only later.

The connection may die at any time, noticed or not; the poll interval bounds what that costs.
"""

from collections.abc import Callable

from pgsched.store.store import Hint, Store

CANCEL = "cancel"
"""Payload of the hint that running tasks may have been cancelled; any other payload means new rows, but one:"""
SCALE = "scale"
"""Somebody asks for another number of processes."""
NOBODY = 0
"""Sender of a hint that is our own guess."""


class Listener:
    """Hands hints on for as long as its connection lives.

    :param on_queued: gets the server process that sent the hint.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_queued: Callable[[int], None],
        on_cancelled: Callable[[], None],
        on_scaled: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_queued = on_queued
        self._on_cancelled = on_cancelled
        self._on_scaled = on_scaled

    async def turn(self) -> float:
        """Listen until the connection is lost, which raises DatabaseError; the duty then comes back."""
        await self._store.listen(on_ready=self._look, on_hint=self._hear)
        return 0.0

    def _look(self) -> None:
        """Hints of the time without a connection are gone: look once."""
        self._on_queued(NOBODY)
        self._on_cancelled()

    def _hear(self, hint: Hint) -> None:
        if hint.payload == CANCEL:
            self._on_cancelled()
        elif hint.payload == SCALE:
            self._on_scaled()
        else:
            self._on_queued(hint.sender)
