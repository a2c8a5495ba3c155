"""What must keep moving in a running supervisor, and for how long each of it may rest: what the watchdog is fed by.

An attempt that failed is a movement too: a database that is away keeps nothing from trying, and no restart would bring
it back. What ends a feeding is a part that has stopped trying. Decides only; runs in the supervisor's loop.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from pgsched.config import Settings
from pgsched.rules.states import SlotState
from pgsched.supervisor.clock import lease_clock

CALLS: Final = 6
"""Database calls, each with its deadline, that one attempt may wait for: its own, a connection's, others' before it."""
READY: Final = (SlotState.IDLE, SlotState.BUSY, SlotState.STOPPING)
"""States of a slot whose worker has come up."""
SLACK: Final = 30.0
"""Seconds for the back-off between two attempts, for what is tried again quietly, and for a busy host."""


class Part(StrEnum):
    """A part of the supervisor that must keep moving."""

    CLAIMS = "claims"
    """The exchange has come round, with the database's answer or without."""
    LEASE = "lease"
    """The lease was renewed or asked for, with success or without."""
    SLOTS = "slots"
    """The pool was tended, and some slot had a worker that was ready."""


def patience(settings: Settings) -> dict[Part, float]:
    """Seconds for which each part may rest."""
    attempt = CALLS * settings.db_timeout + SLACK
    return {
        Part.CLAIMS: settings.poll_interval + attempt,
        Part.LEASE: settings.lease + attempt,
        Part.SLOTS: 2 * settings.boot_timeout + SLACK,
    }


class Liveness:
    """When each part has moved last."""

    def __init__(self, patience: Mapping[Part, float], clock: Callable[[], float] = lease_clock) -> None:
        self._patience = dict(patience)
        self._clock = clock
        self._moved = dict.fromkeys(Part, clock())

    def moved(self, *parts: Part) -> None:
        """These have moved; none given stands for all, as at the beginning."""
        self._moved |= dict.fromkeys(parts or Part, self._clock())

    def tended(self, slots: Mapping[str, int]) -> None:
        """The pool was tended.

        :param slots: how many there are in each state.
        """
        if any(slots.get(state) for state in READY):
            self.moved(Part.SLOTS)

    def stuck(self) -> list[str]:
        """The parts that have rested for too long."""
        now = self._clock()
        return [str(part) for part, since in self._moved.items() if now - since > self._patience[part]]
