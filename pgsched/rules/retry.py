"""How long a failed task waits before it is tried again.

Pure: the dice are an argument, and the caller adds the delay to the database's clock, never to its own.
"""

import math
from collections.abc import Callable

from pgsched.model import Retry

_DOUBLINGS = 900
"""More would leave the range of a float: ``base`` is below 2**30."""


def delay(retry: Retry, retry_count: int, random: Callable[[], float]) -> float:
    """Draw the seconds until the next attempt: capped exponential backoff with full jitter.

    :param retry_count: retries granted so far, so 0 after the first execution.
    :param random: uniform on [0, 1), like :func:`random.random`.
    :return: at least 0 and at most ``min(retry.cap, retry.base * 2**retry_count)``.
    """
    return random() * min(retry.cap, math.ldexp(retry.base, min(retry_count, _DOUBLINGS)))
