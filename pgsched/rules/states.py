"""The states of a task, a slot and a supervisor, and the only ways from one to the next.

The same tables stand in ``docs/states.md`` in words; a test compares them. Why a state was entered is never a
state: it is kept beside it. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from pgsched.model import Status


class SlotState(StrEnum):
    """What fills a slot."""

    EMPTY = "empty"
    """No worker; one is due, at once or after a delay."""
    BOOTING = "booting"
    """A worker was started and has not said what it can run."""
    IDLE = "idle"
    """The worker waits for a task."""
    BUSY = "busy"
    """The worker has a task."""
    STOPPING = "stopping"
    """The worker was asked to leave between tasks."""
    KILLING = "killing"
    """The worker was signalled and its end is awaited."""


class SupervisorState(StrEnum):
    """Where a supervisor is in its life."""

    STARTING = "starting"
    """Checks the schema, boots the pool."""
    RUNNING = "running"
    """Registers, and claims."""
    DRAINING = "draining"
    """Claims nothing; lets running tasks finish."""
    STOPPING = "stopping"
    """Ends what still runs and gives it back."""
    STOPPED = "stopped"
    """Nothing runs and no row is held."""


class InvalidTransition(AssertionError):
    """A way that the table does not have: a bug in pgsched, not a user's error."""


State = TypeVar("State", bound=StrEnum)
Table = Mapping[State, frozenset[State]]

TASK: Table[Status] = {
    Status.QUEUED: frozenset({Status.PROCESSING, Status.CANCELLED}),
    Status.PROCESSING: frozenset({Status.QUEUED, Status.COMPLETED, Status.FAILED, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset({Status.QUEUED}),
    Status.CANCELLED: frozenset({Status.QUEUED}),
}

SLOT: Table[SlotState] = {
    SlotState.EMPTY: frozenset({SlotState.BOOTING}),
    SlotState.BOOTING: frozenset({SlotState.IDLE, SlotState.KILLING, SlotState.EMPTY}),
    SlotState.IDLE: frozenset({SlotState.BUSY, SlotState.STOPPING, SlotState.KILLING, SlotState.EMPTY}),
    SlotState.BUSY: frozenset({SlotState.IDLE, SlotState.KILLING, SlotState.EMPTY}),
    SlotState.STOPPING: frozenset({SlotState.KILLING, SlotState.EMPTY}),
    SlotState.KILLING: frozenset({SlotState.EMPTY}),
}

SUPERVISOR: Table[SupervisorState] = {
    SupervisorState.STARTING: frozenset({SupervisorState.RUNNING, SupervisorState.STOPPING}),
    SupervisorState.RUNNING: frozenset({SupervisorState.DRAINING, SupervisorState.STOPPING}),
    SupervisorState.DRAINING: frozenset({SupervisorState.STOPPING}),
    SupervisorState.STOPPING: frozenset({SupervisorState.STOPPED}),
    SupervisorState.STOPPED: frozenset(),
}


def advance(table: Table[State], present: State, target: State) -> State:
    """Return ``target``.

    :raises InvalidTransition: the table has no way there.
    """
    if target not in table[present]:
        raise InvalidTransition(f"{type(present).__name__}: no way from {present} to {target}")
    return target
