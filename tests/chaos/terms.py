"""The terms of a storm: how the live tasks are split, and with which options each supervisor is run.

Pure, and drawn from the seed. The supervisors of one storm differ, as those of a real fleet do while it is changed.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

PARTITIONS = 4
SOON, SOMETIME, RANGES = 8.0, 25.0, 6 * 3600.0
"""Ages up to which ended tasks are kept, in seconds: deleted while the storm lasts, or kept in ranges of an hour."""


class SeatTerms(NamedTuple):
    """The options of the supervisor in one seat."""

    partitions: tuple[int, ...] = ()
    """Those that it claims from; none: all."""
    pooled: bool = False
    kept: float | None = None
    """Seconds after which ended tasks are pruned; None: it prunes nothing."""

    def arguments(self) -> tuple[str, ...]:
        """For ``pgsched run``."""
        bound = ("--partitions", ",".join(map(str, self.partitions))) if self.partitions else ()
        pruning = ("--prune-older-than", f"{self.kept:g}") if self.kept is not None else ()
        return (*bound, *pruning, *(["--pooled"] if self.pooled else []))


class Terms(NamedTuple):
    """Of a whole storm."""

    partitions: int
    seats: tuple[SeatTerms, ...]

    @property
    def pooled(self) -> bool:
        """Whether somebody goes through a pooler."""
        return any(seat.pooled for seat in self.seats)

    @property
    def kept(self) -> float | None:
        """Seconds for which every ended task is kept at least; None: for ever."""
        return min((seat.kept for seat in self.seats if seat.kept is not None), default=None)


def plain(seats: int) -> Terms:
    """One table, and no option."""
    return Terms(1, (SeatTerms(),) * seats)


def draw(seed: int, seats: int) -> Terms:
    """Draw the terms of a storm with so many supervisors."""
    dice = random.Random(f"terms {seed}")
    partitions = dice.choice((1, PARTITIONS))
    return Terms(partitions, tuple(_seats(dice, seats, partitions)))


def _seats(dice: random.Random, seats: int, partitions: int) -> Iterator[SeatTerms]:
    # One serves all: else the end of the storm would have to wait for whoever is missing.
    unbound = dice.randrange(seats)
    for number in range(seats):
        bound: list[int] = []
        if partitions > 1 and number != unbound:
            bound = sorted(dice.sample(range(partitions), dice.randint(1, partitions - 1)))
        yield SeatTerms(tuple(bound), dice.random() < 0.5, dice.choice((None, SOON, SOMETIME, RANGES)))
