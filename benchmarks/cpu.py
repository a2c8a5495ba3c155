"""CPU: the same pure Python functions run by pgsched and by ``multiprocessing.Pool``, in turn, with as many workers.

Both get all tasks at once and all have their workers ready; time counts from the first task's first line to the last
one's last line. What pgsched does beside (claims, fences, durable settles, limits, metrics, and the database server
itself) happens on the same processors in that time, and is what makes the difference. ``durable_`` is the least that
claims and settles cost: the same Pool with rows for tasks, see :mod:`benchmarks.pools`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from benchmarks import burning, pools
from benchmarks.figures import median
from benchmarks.scenario import Bench, Result
from benchmarks.spinning import loops_for
from benchmarks.supervisors import supervisor


class Shape(NamedTuple):
    """So many tasks of so many seconds, so many times by each side: a machine's speed drifts from turn to turn."""

    name: str
    seconds: float
    tasks: int
    rounds: int


SHAPES = (Shape("20ms", 0.02, 400, 6), Shape("500ms", 0.5, 40, 4))
QUICK_SHAPES = (Shape("20ms", 0.02, 20, 1), Shape("500ms", 0.5, 4, 1))


class Run(NamedTuple):
    """One side's turn."""

    seconds: float
    """From the first start to the last end."""
    task_cpu: float
    """What a task had of a processor."""
    supervisor_cores: float = 0.0
    postgres_cores: float | None = None


def cpu(bench: Bench) -> list[Result]:
    """Measure all sides on tasks of both lengths."""
    shapes = QUICK_SHAPES if bench.quick else SHAPES
    results = {shape: _compare(bench, shape) for shape in shapes}
    # Of the two lengths, the one that we are worse at.
    worst = min(figures[0].value or 0.0 for figures in results.values())
    return [Result("speed_vs_pool", worst, ""), *(figure for figures in results.values() for figure in figures)]


def _compare(bench: Bench, shape: Shape) -> list[Result]:
    """Run the three in turn; the first figure is how fast we are beside the Pool."""
    loops = [loops_for(shape.seconds)] * shape.tasks
    sides: dict[str, Callable[[Path], Run]] = {
        "pgsched": lambda path: _in_pgsched(bench, loops, path, shape),
        "Pool": lambda path: Run(*_seen(pools.bare(bench.processes, loops, path))),
        "Pool with rows": lambda path: Run(*_seen(pools.durable(bench.dsn, bench.processes, loops, path))),
    }
    runs: list[list[Run]] = [[] for _ in sides]
    for turn in range(shape.rounds):
        for (side, run), kept in zip(sides.items(), runs, strict=True):
            bench.progress(f"{shape.tasks} tasks of {shape.name}, round {turn + 1}/{shape.rounds}: {side}")
            kept.append(run(bench.scratch / f"{shape.name}-{turn}-{side}"))
    ours, bare, durable = runs
    pairs = list(zip(ours, bare, strict=True))
    our_seconds, pool_seconds = (median([run.seconds for run in side]) for side in (ours, bare))
    durable_pairs = [pool.seconds / rows.seconds for pool, rows in zip(bare, durable, strict=True)]
    postgres = [run.postgres_cores for run in ours if run.postgres_cores is not None]
    return [
        Result(f"speed_vs_pool_{shape.name}", median([pool.seconds / our.seconds for our, pool in pairs]), ""),
        Result(f"durable_speed_vs_pool_{shape.name}", median(durable_pairs), ""),
        Result(f"pgsched_s_{shape.name}", our_seconds, "s"),
        Result(f"pool_s_{shape.name}", pool_seconds, "s"),
        Result(f"ideal_s_{shape.name}", shape.seconds * shape.tasks / bench.processes, "s"),
        # The same work: where this is not 1, caches were lost, or the machine changed its speed between the turns.
        Result(f"task_cpu_vs_pool_{shape.name}", median([our.task_cpu / pool.task_cpu for our, pool in pairs]), ""),
        Result(f"supervisor_cores_{shape.name}", median([run.supervisor_cores for run in ours]), ""),
        Result(f"postgres_cores_{shape.name}", median(postgres) if postgres else None, ""),
    ]


def _in_pgsched(bench: Bench, loops: Sequence[int], path: Path, shape: Shape) -> Run:
    with psycopg.connect(bench.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE scheduled_tasks")
        with supervisor(bench.dsn, bench.processes) as running:
            burning.warm_up(connection)
            parent, server = running.cpu_seconds(), bench.server.cpu_seconds()
            burning.queue(connection, loops, path)
            runs = burning.wait(path, len(loops), shape.seconds * shape.tasks / bench.processes)
            after = bench.server.cpu_seconds()
            seconds, task_cpu = _seen(runs)
            postgres = None if server is None or after is None else (after - server) / seconds
            return Run(seconds, task_cpu, (running.cpu_seconds() - parent) / seconds, postgres)


def _seen(runs: Sequence[burning.Burned]) -> tuple[float, float]:
    return burning.span(runs), sum(run.cpu for run in runs) / len(runs)
