"""Mixed: one task in a hundred takes half a second and the others a millisecond, all of one type, so that nothing tells
the supervisor which is which. Do the short ones wait behind a long one while another worker is idle?

All are queued at once and keep a processor busy. The ideal is a queue from which each worker takes the next task the
moment it is free. It is played through with the durations that were measured, so that it shares the machine's noise:
what then is left of a short task's delay was caused by the order and the gaps in which tasks were given out.
"""

import heapq
import random
from collections.abc import Sequence

import psycopg

from benchmarks import burning
from benchmarks.figures import percentile
from benchmarks.scenario import Bench, Result
from benchmarks.spinning import loops_for
from benchmarks.supervisors import supervisor

LONG, SHORT = 0.5, 0.001
ONE_IN = 100


def mixed(bench: Bench) -> list[Result]:
    """Measure one backlog of mixed lengths."""
    tasks = int(bench.params.get("tasks", 300 if bench.quick else 4_000))
    seconds = _lengths(tasks)
    path = bench.scratch / "mixed"
    ideal = sum(seconds) / bench.processes
    with (
        psycopg.connect(bench.dsn, autocommit=True) as connection,
        supervisor(bench.dsn, bench.processes),
    ):
        burning.warm_up(connection)
        bench.progress(f"{tasks} tasks, at least {ideal:.1f} s")
        burning.queue(connection, [loops_for(length) for length in seconds], path)
        runs = burning.wait(path, tasks, ideal)
    first = min(run.started for run in runs)
    should = ideal_starts([run.ended - run.started for run in runs], bench.processes)
    short = [place for place, length in enumerate(seconds) if length == SHORT]
    starts = [(runs[place].started - first) * 1e3 for place in short]
    delays = [(runs[place].started - first - should[place]) * 1e3 for place in short]
    work = sum(run.ended - run.started for run in runs) / bench.processes
    return [
        Result("short_p99_start_ms", percentile(starts, 99), "ms"),
        Result("short_p99_delay_ms", percentile(delays, 99), "ms"),
        Result("makespan_s", burning.span(runs), "s"),
        Result("makespan_to_ideal", burning.span(runs) / ideal, ""),
        Result("makespan_to_measured_work", burning.span(runs) / work, ""),
    ]


def ideal_starts(seconds: Sequence[float], workers: int) -> list[float]:
    """When each task would start if the worker that is free first always took the next one at once."""
    free = [0.0] * workers
    starts = []
    for length in seconds:
        start = heapq.heappop(free)
        starts.append(start)
        heapq.heappush(free, start + length)
    return starts


def _lengths(tasks: int) -> list[float]:
    """Shuffled, and the same in every run."""
    lengths = [LONG if place % ONE_IN == 0 else SHORT for place in range(tasks)]
    random.Random(tasks).shuffle(lengths)
    return lengths
