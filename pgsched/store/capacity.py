"""What the processes did of late, and how many the work needs, from what the tables tell; for ``pgsched status``.

The metrics know more: processor time, and each slot by itself. What is here can be had without them, from any host.
Only reads. Runs in the command line.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgsched.store.statements import rows

WINDOW: Final = 300.0
"""Seconds that are looked back."""
ATTEMPTS_LIMIT: Final = 10_000
"""Of the newest completed tasks, and of failed attempts, so many are looked at; that may make the window shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one task type asks for."""

    task_type: str
    attempts: int
    """How many have ended in the window."""
    became_due: int
    """How many tasks became due in it, failed attempts included."""
    seconds: float | None
    """What an attempt takes; of a type of which none has ended, at least, and None if none runs either."""
    needed: float | None
    """Processes that would always be busy with what became due; None: nobody knows what an attempt takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What was found in the tables: by task type and supervisor."""

    task_type: str
    supervisor: int | None
    ended: int
    ended_seconds: float
    running: int
    running_seconds: float
    busy: float
    """Process seconds within the window."""
    became_due: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The window, and what fell into it."""

    window: float
    """Seconds."""
    attempts: list[Attempts]
    demands: list[Demand]

    @property
    def needed(self) -> float:
        """Processes for all that became due; at least so many, where a type's is unknown."""
        return sum(demand.needed or 0.0 for demand in self.demands)

    def busy(self, supervisor: int, processes: int, age: float) -> float:
        """The share of its time in which a supervisor's processes had tasks.

        :param age: for how many seconds it has been there.
        """
        time = min(self.window, age) * processes
        used = sum(each.busy for each in self.attempts if each.supervisor == supervisor)
        # Claims that wait for a slot look like running ones.
        return min(used / time, 1.0) if time > 0 else 0.0


def read_attempts(conn: psycopg.Connection[Any], limit: int = ATTEMPTS_LIMIT) -> tuple[float, list[Attempts]]:
    """The window, and the attempts in it."""
    found = rows(conn, "status_attempts", limit, WINDOW)
    return found[0][0] if found else WINDOW, [
        Attempts(
            task_type=task_type,
            supervisor=supervisor,
            ended=ended,
            ended_seconds=ended_seconds,
            running=running,
            running_seconds=running_seconds,
            busy=busy,
            became_due=became_due,
        )
        for _, task_type, supervisor, ended, ended_seconds, running, running_seconds, busy, became_due in found
    ]


def capacity(window: float, attempts: list[Attempts], waiting: Mapping[str, int]) -> Capacity:
    """What the work needs.

    :param waiting: how many tasks of each type became due within the window, and are queued.
    """
    types: defaultdict[str, list[Attempts]] = defaultdict(list)
    for each in attempts:
        types[each.task_type].append(each)
    names = sorted({*types, *(name for name, number in waiting.items() if number)})
    return Capacity(
        window=window,
        attempts=attempts,
        demands=[_demand(name, window, types[name], waiting.get(name, 0)) for name in names],
    )


def _demand(task_type: str, window: float, attempts: list[Attempts], waiting: int) -> Demand:
    ended, running = sum(each.ended for each in attempts), sum(each.running for each in attempts)
    seconds = None
    if ended:
        seconds = sum(each.ended_seconds for each in attempts) / ended
    elif running:
        seconds = sum(each.running_seconds for each in attempts) / running
    became_due = waiting + sum(each.became_due for each in attempts)
    needed = 0.0 if not became_due else None if seconds is None else became_due * seconds / window
    return Demand(task_type=task_type, attempts=ended, became_due=became_due, seconds=seconds, needed=needed)
