"""What a storm is to do: faults and tasks with their times, and on what terms, drawn from a seed.

A pure function of seed, duration and lease. Which of the processes that are there then is hit depends on them, so a
fault carries a number by which to choose.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from tests.chaos import terms
from tests.chaos.terms import Terms

SEATS = 3
"""Supervisors."""
SETTLING = 3.0
"""Seconds before the first fault."""
QUEUES = ("default", "mail", "bulk")
NO_SEAT = -1


class Harm(StrEnum):
    """What can be done to a storm's processes, lines and server."""

    KILL_WORKER = "kill a worker"
    STOP_WORKER = "stop a worker"
    KILL_FORKSERVER = "kill the forkserver"
    STOP_FORKSERVER = "stop the forkserver"
    KILL_SUPERVISOR = "kill a supervisor"
    STOP_SUPERVISOR = "stop a supervisor"
    TERMINATE_SUPERVISOR = "ask a supervisor to stop"
    STEP_CLOCK = "step a supervisor's wall clock"
    REFUSE = "refuse connections"
    REJECT = "reject logins"
    SILENCE = "drop all packets"
    CUT = "cut connections in mid-reply"
    SWALLOW = "swallow the reply of a commit"
    DELAY = "hold back what is under way, while new connections work"
    TERMINATE_BACKENDS = "terminate sessions"
    CRASH_SERVER = "kill a server process, so that the server recovers from a crash"
    FILL_TABLES = "fill the disk that the tables are on"
    FILL_LOG = "fill the disk that the write-ahead log is on"


class Fault(NamedTuple):
    """One harm. Times in seconds."""

    at: float
    """After the storm's begin."""
    harm: Harm
    seat: int
    """Which supervisor; `NO_SEAT` for the server."""
    seconds: float
    """How long it lasts; 0 for what is done in a moment."""
    choice: float
    """From 0 up to 1: which one of those that can be hit."""


class Kind(StrEnum):
    """The functions of :mod:`tests.chaos.app`."""

    NOOP = "noop"
    BURN = "burn"
    NAP = "nap"
    WRONG = "wrong"
    FLAKY = "flaky"
    SUICIDE = "suicide"
    OVERTIME = "overtime"
    HOG = "hog"


class Order(NamedTuple):
    """Equal tasks that are queued together. Times in seconds."""

    at: float
    kind: Kind
    tasks: int
    amount: int
    """Milliseconds of :attr:`Kind.BURN` and :attr:`Kind.NAP`; the attempt at which :attr:`Kind.FLAKY` succeeds."""
    queue: str
    priority: int
    delay: float
    max_retries: int
    key: str | None
    cancel_after: float | None


class Plan(NamedTuple):
    """A whole storm."""

    seed: int
    seconds: float
    lease: float
    faults: tuple[Fault, ...]
    orders: tuple[Order, ...]
    terms: Terms = terms.plain(SEATS)


_LONG = (Harm.STOP_SUPERVISOR, Harm.SILENCE, Harm.REFUSE)
"""Harms that come in two lengths: shorter than the lease and longer."""
_PROCESS = (
    *(Harm.KILL_WORKER, Harm.KILL_WORKER, Harm.STOP_WORKER, Harm.KILL_FORKSERVER, Harm.STOP_FORKSERVER),
    *(Harm.KILL_SUPERVISOR, Harm.STOP_SUPERVISOR, Harm.STOP_SUPERVISOR, Harm.TERMINATE_SUPERVISOR, Harm.STEP_CLOCK),
)
_NETWORK = (
    *(Harm.REFUSE, Harm.REJECT, Harm.SILENCE, Harm.CUT, Harm.CUT, Harm.SWALLOW, Harm.SWALLOW, Harm.DELAY, Harm.DELAY),
    Harm.TERMINATE_BACKENDS,
)
_SERVER = (Harm.CRASH_SERVER, Harm.FILL_TABLES, Harm.FILL_LOG, Harm.TERMINATE_BACKENDS)
_LASTS = {
    Harm.STOP_WORKER: (0.2, 3.0),
    Harm.STOP_FORKSERVER: (0.5, 8.0),
    Harm.STOP_SUPERVISOR: (0.1, 1.5),
    Harm.REFUSE: (0.2, 1.5),
    Harm.REJECT: (0.3, 2.0),
    Harm.SILENCE: (0.3, 1.5),
    Harm.CUT: (0.2, 1.0),
    Harm.SWALLOW: (1.0, 1.0),
    Harm.DELAY: (1.0, 5.0),
    Harm.FILL_TABLES: (0.5, 3.0),
    Harm.FILL_LOG: (0.5, 2.0),
}


def draw(seed: int, seconds: float, lease: float, *, only: Iterable[Harm] = Harm) -> Plan:
    """Draw a storm.

    :param only: no others; what is left out makes room for those that are left.
    """
    allowed = frozenset(only)
    faults: list[Fault] = []
    for seat in range(SEATS):
        faults += _lane(random.Random(f"process {seat} {seed}"), seat, _kept(_PROCESS, allowed), 5.0, seconds, lease)
        faults += _lane(random.Random(f"network {seat} {seed}"), seat, _kept(_NETWORK, allowed), 6.0, seconds, lease)
    server = _kept(_SERVER, allowed)
    faults += _lane(random.Random(f"server {seed}"), NO_SEAT, server, 14.0, seconds, lease)
    orders = tuple(_orders(random.Random(f"orders {seed}"), seconds))
    return Plan(seed, seconds, lease, tuple(sorted(faults)), orders, terms.draw(seed, SEATS))


def _kept(harms: tuple[Harm, ...], allowed: frozenset[Harm]) -> list[Harm]:
    return [harm for harm in harms if harm in allowed]


def _lane(
    dice: random.Random, seat: int, harms: list[Harm], gap: float, seconds: float, lease: float
) -> Iterator[Fault]:
    """One fault after another, each over before the next; a deck of cards, so that each kind has its turn."""
    at = SETTLING
    deck: list[Harm] = []
    while harms:
        deck = deck or dice.sample(harms, len(harms))
        harm = deck.pop()
        at += dice.uniform(0.2, 2.0) * gap
        low, high = _LASTS.get(harm, (0.0, 0.0))
        if harm in _LONG and dice.random() < 0.4:
            low, high = 1.1 * lease, 1.8 * lease
        lasts = round(dice.uniform(low, high), 3)
        if at + lasts > seconds:
            return
        yield Fault(round(at, 3), harm, seat, lasts, round(dice.random(), 6))
        at += lasts


def _orders(dice: random.Random, seconds: float) -> Iterator[Order]:
    at = 0.0
    for number in itertools.count():
        at += dice.uniform(0.1, 0.9)
        if at > seconds:
            return
        yield _order(dice, round(at, 3), number)


def _order(dice: random.Random, at: float, number: int) -> Order:
    [kind] = dice.choices(list(Kind), weights=(20, 20, 20, 4, 12, 5, 2, 2))
    few = kind in (Kind.SUICIDE, Kind.OVERTIME, Kind.HOG, Kind.WRONG)
    amount = dice.randint(2, 3)
    tasks = 1 if few else dice.choice((5, 50, 150)) if kind is Kind.NOOP else dice.choice((1, 2, 5, 12))
    if kind is Kind.BURN:
        amount = dice.randint(5, 50)
    elif kind is Kind.NAP:
        amount = dice.choice((20, 200, 200, 1000, 6000))
        # No more than the storm's processes can do beside the rest.
        tasks = min(tasks, max(1000 // amount, 1))
    delay = dice.choice((0.0, 0.0, 0.0, dice.uniform(0.1, 15.0)))
    if dice.random() < 0.02:
        delay = 86400.0
    return Order(
        at=at,
        kind=kind,
        tasks=tasks,
        amount=amount,
        queue=dice.choice(QUEUES),
        priority=dice.choice((-1, 0, 0, 0, 5)),
        delay=round(delay, 3),
        max_retries=dice.choice((0, 1, 3)) if few else 8,
        key=f"key {number % 7}" if kind is Kind.NAP and dice.random() < 0.3 else None,
        cancel_after=round(dice.uniform(0.0, 3.0), 3) if dice.random() < 0.12 else None,
    )
