"""Pure Python work of known length, for tasks that shall keep a processor busy. Never sleeps."""

import functools
import time

TRIAL = 200_000
"""Loops of one trial: some ten milliseconds."""


def spin(loops: int) -> int:
    """Compute so many times; the sum keeps it from being nothing."""
    total = 0
    for number in range(loops):
        total += number * number % 7
    return total


@functools.cache
def loops_per_second() -> float:
    """How fast :func:`spin` is here, undisturbed: the best of several trials, found once a process.

    So every repetition, and whatever is compared, does the same work.
    """
    best = min(_trial() for _ in range(15))
    return TRIAL / best


def loops_for(seconds: float) -> int:
    """The loops that take so long."""
    return round(loops_per_second() * seconds)


def _trial() -> float:
    started = time.thread_time()
    spin(TRIAL)
    return time.thread_time() - started
