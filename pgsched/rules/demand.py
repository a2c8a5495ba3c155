"""How much to claim, and of what: the bound of the bounded queue.

A supervisor claims what its slots will start soon and nothing else. Of a task type that is known to be short it
takes a few hundredths of a second of work for every slot, so that tiny tasks stream; of a type that is long, or
not known yet, one task for each slot that is about to be free, because a task that waits here while another
host idles is a task too late. Runs in the supervisor; pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from pgsched.model import Claim, Group, Want

HORIZON = 0.05
"""Seconds of work to hold ready for each slot; a type that takes as long or longer is long."""
AHEAD_SECONDS = 0.005
"""A task may wait in a worker's socket behind others that take so long together: a round trip's worth."""
AHEAD_TASKS = 256
"""What keeps a worker busy while the parent is at the books of a whole batch."""
AHEAD_SIZE = 64 * 1024
"""Characters of a payload that may wait in a worker's socket."""
OVERHEAD = 10e-6
"""Seconds that a worker needs for a task that takes none."""
STALE = 1.0
"""Seconds in the backlog, with every slot held by something else, after which a claim is given back."""

_WEIGHT = 1 / 8
_SHORTEST = 1e-6


_payload_of: Callable[[Claim], str] = itemgetter(Claim._fields.index("payload"))


class Limits(NamedTuple):
    """Bounds on one claim, whatever the durations say."""

    batch: int = 1500
    """Tasks that one claim takes at most: more saves nothing and holds its locks longer."""
    waiting: int = 4500
    """Tasks that wait in the backlog at most; see ``rules/pace`` for what bounds it before."""
    size: int = 16 * 1024 * 1024
    """Characters of payloads in the backlog beyond which nothing is claimed; one claim brings some 4 MiB more."""
    groups: int = 64
    """Groups that one claim looks into at most."""


class Plan(NamedTuple):
    """What to claim: rows are taken in the order of ``wants`` until there are ``total``."""

    wants: list[Want]
    total: int


LIMITS = Limits()
NOTHING = Plan([], 0)


class Durations:
    """How long tasks of each type take: a moving average that believes bad news at once.

    A duration of :data:`HORIZON` or more counts in full when it is above the average, so one long task makes its
    type long; it takes some forty short ones to make it short again.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def get(self, task_type: str) -> float | None:
        """Seconds; None when none of the type has ended yet."""
        return self._seconds.get(task_type)

    def observe(self, task_type: str, seconds: float) -> None:
        """Take in how long an attempt took; 0 means that it never started, and says nothing."""
        if seconds <= 0:
            return
        known = self._seconds.get(task_type)
        if known is None or known < seconds >= HORIZON:
            self._seconds[task_type] = seconds
        else:
            self._seconds[task_type] = known + (seconds - known) * _WEIGHT

    def is_long(self, task_type: str) -> bool:
        """Whether tasks of the type are taken one for each slot; so are those of a type that is not known."""
        return self._seconds.get(task_type, HORIZON) >= HORIZON


def occupied(durations: Durations, running: Iterable[tuple[str, float]]) -> int:
    """Count the slots that will not be free soon.

    :param running: task type and seconds so far of each running task.
    """
    return sum(seconds >= HORIZON or durations.is_long(task_type) for task_type, seconds in running)


def ahead(durations: Durations, task_type: str, size: int = 0) -> int:
    """How many tasks of a type may wait in a worker's socket behind the one that runs: 0 to 256.

    :param size: characters of the payload: a large one waits nowhere but in the backlog, which is bounded.
    """
    seconds = durations.get(task_type)
    if seconds is None or seconds >= AHEAD_SECONDS or size > AHEAD_SIZE:
        return 0
    return min(AHEAD_TASKS, int(AHEAD_SECONDS / (seconds + OVERHEAD)))


def stale(waited: float, *, free: int) -> bool:
    """Whether the backlog should be given back: its oldest claim has waited long, and no slot is free for it."""
    return waited > STALE and free == 0


def plan(
    groups: Iterable[Group],
    durations: Durations,
    *,
    slots: int,
    free: int,
    occupied: int,
    waiting: Sequence[Claim],
    limits: Limits = LIMITS,
) -> Plan:
    """Decide what the next claim takes.

    The order is strict: higher priority first, then the group whose oldest row is due longest. Groups that are
    not due get no want.

    :param slots: slots that have a worker.
    :param free: those of them that are idle.
    :param occupied: those that are busy for longer, see :func:`occupied`. The others are free, or will be within
        about :data:`HORIZON`, and count as open: if only idle ones did, a stream of tiny tasks would shut out
        a long one for ever.
    :param waiting: the backlog.
    """
    due = sorted((group for group in groups if group.due_in <= 0), key=_turn)[: limits.groups]
    room = min(limits.batch, limits.waiting - len(waiting))
    if not due or room <= 0 or sum(map(len, map(_payload_of, waiting))) > limits.size:
        return NOTHING
    long_waiting, seconds_waiting = _weigh(waiting, durations)
    # While slots are given up more may be occupied than stay; an idle one is open all the same.
    places = max(slots - occupied, free) - long_waiting
    seconds = places * HORIZON - seconds_waiting
    if free == 0 and (seconds_waiting > seconds or len(waiting) * 2 > limits.waiting):
        # Half full: whole batches later are cheaper than a trickle now.
        seconds = 0.0
    if all(durations.is_long(group.task_type) for group in due):
        return _spread(due, min(places, room))
    return _share(due, durations, places, seconds, room)


def _turn(group: Group) -> tuple[int, float]:
    return -group.priority, group.due_in


def _weigh(waiting: Sequence[Claim], durations: Durations) -> tuple[int, float]:
    """Count the long tasks in the backlog, and the seconds of work of the others."""
    long, seconds = 0, 0.0
    for task_type, count in Counter(claim.task_type for claim in waiting).items():
        if durations.is_long(task_type):
            long += count
        else:
            seconds += count * (durations.get(task_type) or 0.0)
    return long, seconds


def _spread(due: list[Group], total: int) -> Plan:
    """Any group may fill the whole: how many rows each has is not known, and all weigh the same."""
    if total <= 0:
        return NOTHING
    return Plan([_want(group, total) for group in due], total)


def _share(due: list[Group], durations: Durations, places: int, seconds: float, room: int) -> Plan:
    """One priority after the other, each as if it were the first, and the total of the first for all.

    So a lower priority gets only what the higher ones turn out to lack. That holds while each of those could have
    taken all; below one that could not, nothing is taken until it is known to be empty.
    """
    wants: list[Want] = []
    total = 0
    for _, level in groupby(due, key=lambda group: group.priority):
        taken = _share_level(list(level), durations, places, seconds, room)
        if not taken:
            break
        total = total or min(room, sum(want.quota for want in taken))
        wants += [want._replace(quota=min(want.quota, total)) for want in taken]
        if min(want.quota for want in taken) < total:
            break
    return Plan(wants, total) if wants else NOTHING


def _share_level(due: list[Group], durations: Durations, places: int, seconds: float, room: int) -> list[Want]:
    """Earlier groups take their fill; what they leave, in places and in seconds, goes to the later ones.

    A group that finds the seconds gone may still take one task, within an allowance of the same size again:
    the earlier ones may turn out to have only a row each, and then the slots would starve.
    """
    wants: list[Want] = []
    allowance = seconds
    for group in due:
        if durations.is_long(group.task_type):
            quota = min(places, room)
            places -= max(quota, 0)
            seconds -= max(quota, 0) * HORIZON
        else:
            each = max(durations.get(group.task_type) or 0.0, _SHORTEST)
            quota = min(int(seconds / each), room)
            seconds -= max(quota, 0) * each
            if quota <= 0 < places and each <= allowance:
                quota = 1
                allowance -= each
        if quota > 0:
            wants.append(_want(group, quota))
    return wants


def _want(group: Group, quota: int) -> Want:
    return Want(group.task_type, group.queue, group.priority, quota, partition=group.partition)
