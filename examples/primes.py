"""Count primes in ranges: a task that splits itself, one that stops early when asked, and one that is ``async``.

pgsched run examples.primes:app
pgsched enqueue count_all '{"limit": 20000000}'
"""

import asyncio
import hashlib
from datetime import timedelta

from pgsched import App, current_task

app = App()

RANGE = 1_000_000


@app.task
def count_all(limit: int) -> list[int]:
    """Split the numbers below ``limit`` into ranges, one task each; return their ids.

    A retry of this task finds the tasks of the first attempt by their keys, while those are still live, instead
    of making them again.
    """
    parent = current_task().id
    return [
        count.options(unique_key=f"primes {parent} {start}").enqueue(start, min(start + RANGE, limit))
        for start in range(0, limit, RANGE)
    ]


@app.task(timeout="2m", retry=2)
def count(start: int, stop: int) -> int:
    """Count the primes from ``start`` up to, and not including, ``stop``."""
    sieve = bytearray([1]) * (stop - start)
    task = current_task()
    divisor = 2
    while divisor * divisor < stop:
        if task.stop_requested:
            raise TimeoutError(f"stopped at divisor {divisor}: {task.stop_reason}")
        first = max(divisor * divisor, -(-start // divisor) * divisor)
        sieve[first - start :: divisor] = bytes(len(range(first, stop, divisor)))
        divisor += 1
    return sum(sieve) - sum(1 for number in (0, 1) if start <= number < stop)


@app.task(queue="reports", priority=10)
async def digest(paths: list[str]) -> dict[str, str]:
    """Hash files side by side: hashing lets other threads run."""
    hashes = await asyncio.gather(*(asyncio.to_thread(_hash, path) for path in paths))
    return dict(zip(paths, hashes, strict=True))


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def nightly(paths: list[str]) -> int:
    """Enqueue from a coroutine, to run in an hour."""
    return await digest.options(delay=timedelta(hours=1), unique_key="nightly digest").enqueue_async(paths)
