"""CPU: the same pure Python functions run by pgsched and by ``multiprocessing.Pool``, in turn, with as many workers.

Both get all tasks at once and have their workers ready; time counts from the first task's first line to the last one's
last line. What pgsched does beside (claims, fences, durable settles, limits, metrics, and the database server itself)
happens on the same processors in that time, and is what makes the difference.
"""

import multiprocessing
import statistics
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks import burning
from benchmarks.scenario import Bench, Result
from benchmarks.spinning import loops_for
from benchmarks.supervisors import supervisor
from benchmarks.tasks import burn

ROUNDS = 2


class Shape(NamedTuple):
    """So many tasks of so many seconds."""

    name: str
    seconds: float
    tasks: int


SHAPES = (Shape("20ms", 0.02, 400), Shape("500ms", 0.5, 40))
QUICK_SHAPES = (Shape("20ms", 0.02, 20), Shape("500ms", 0.5, 4))


def cpu(bench: Bench) -> list[Result]:
    """Measure both on tasks of both lengths."""
    results: list[Result] = []
    speeds: list[float] = []
    for shape in QUICK_SHAPES if bench.quick else SHAPES:
        ours, pools = _alternate(bench, shape, 1 if bench.quick else ROUNDS)
        speeds.append(pools / ours)
        ideal = shape.seconds * shape.tasks / bench.processes
        results += [
            Result(f"speed_vs_pool_{shape.name}", speeds[-1], ""),
            Result(f"pgsched_s_{shape.name}", ours, "s"),
            Result(f"pool_s_{shape.name}", pools, "s"),
            Result(f"ideal_s_{shape.name}", ideal, "s"),
        ]
    # Of the two lengths, the one that we are worse at.
    return [Result("speed_vs_pool", min(speeds), ""), *results]


def _alternate(bench: Bench, shape: Shape, rounds: int) -> tuple[float, float]:
    """Median seconds of pgsched and of the Pool."""
    loops = [loops_for(shape.seconds)] * shape.tasks
    ours, pools = [], []
    for turn in range(rounds):
        bench.progress(f"{shape.tasks} tasks of {shape.name}, round {turn + 1}/{rounds}: pgsched")
        ours.append(_in_pgsched(bench, loops, bench.scratch / f"{shape.name}-{turn}-pgsched", shape))
        bench.progress(f"{shape.tasks} tasks of {shape.name}, round {turn + 1}/{rounds}: Pool")
        pools.append(_in_pool(bench.processes, loops, bench.scratch / f"{shape.name}-{turn}-pool"))
    return statistics.median(ours), statistics.median(pools)


def _in_pgsched(bench: Bench, loops: Sequence[int], path: Path, shape: Shape) -> float:
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE scheduled_tasks")
        with supervisor(bench.dsn, bench.processes):
            burning.warm_up(connection)
            burning.queue(connection, loops, path)
            return burning.span(burning.wait(path, len(loops), shape.seconds * shape.tasks / bench.processes))


def _in_pool(processes: int, loops: Sequence[int], path: Path) -> float:
    arguments = [(each, str(path), number) for number, each in enumerate(loops)]
    # A fork of this process would take its memory and its descriptors along; the tasks run alike.
    context = multiprocessing.get_context("forkserver")
    with context.Pool(processes, _wait_for_all, (context.Barrier(processes),)) as pool:
        pool.starmap(_burn, arguments, chunksize=1)
    return burning.span(burning.burned(path))


def _wait_for_all(workers: threading.Barrier) -> None:
    """Take no task before every worker is up."""
    workers.wait(60)


def _burn(loops: int, path: str, number: int) -> None:
    """The function behind the task type: a Pool needs one that it can name."""
    burn.function(loops, path, number)
