"""Scale: more and more supervisors on one table, each with one worker and tasks that do nothing.

All are up and idle when one INSERT queues the work, so they wake together and claim from the same rows. On a few
processors more supervisors cannot be faster; what is asked is whether they stand in each other's way.

Then the same with the live tasks split into as many partitions as there are supervisors: each bound to one of them,
which claims in nobody's way, but in no order across partitions; and all of them bound to none. And the most of them
once more *apart*, each with a queue of its own: what is left of the difference to one then is the processors' doing.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import psycopg

from benchmarks.ended import rate, settled, wait_for_all, wait_for_task
from benchmarks.filling import queue_noops
from benchmarks.scenario import Bench, Result
from benchmarks.supervisors import supervisor
from pgsched.store.schema import migrate

SIZES = (1, 2, 4, 8, 16)
QUICK_SIZES = (1, 2)
PARTITIONED = (2, 4, 8)
QUICK_PARTITIONED = (2,)


class Shared(NamedTuple):
    """What one number of supervisors has reached together."""

    tasks_per_s: float | None
    working: int
    """How many of them ended at least one task."""
    postgres_us: float | None
    """Microseconds of the server's processor time a task."""


def scale(bench: Bench) -> list[Result]:
    """Measure every size, each in a schema of its own."""
    tasks = int(bench.params.get("tasks", 1_000 if bench.quick else 50_000))
    shared = {size: _measure(bench, size, tasks) for size in (QUICK_SIZES if bench.quick else SIZES)}
    sizes = QUICK_PARTITIONED if bench.quick else PARTITIONED
    bound = {
        size: _measure(bench, size, tasks, partitions=size, bindings=_each("--partitions", range(size)))
        for size in sizes
    }
    unbound = {size: _measure(bench, size, tasks, partitions=size) for size in sizes}
    most = max(shared)
    queues = [f"apart-{number}" for number in range(most)]
    apart = _measure(bench, most, tasks, queues=queues, bindings=_each("--queues", queues))
    return [
        *(Result(f"bound_tasks_per_s_{size}", each.tasks_per_s, "1/s") for size, each in bound.items()),
        *(Result(f"unbound_tasks_per_s_{size}", each.tasks_per_s, "1/s") for size, each in unbound.items()),
        *(Result(f"bound_postgres_cpu_us_per_task_{size}", each.postgres_us, "us") for size, each in bound.items()),
        *(Result(f"unbound_postgres_cpu_us_per_task_{size}", each.postgres_us, "us") for size, each in unbound.items()),
        *(Result(f"bound_to_one_table_{size}", _ratio(bound[size], shared[size]), "") for size in sizes),
        *(Result(f"tasks_per_s_{size}", each.tasks_per_s, "1/s") for size, each in shared.items()),
        *(Result(f"postgres_cpu_us_per_task_{size}", each.postgres_us, "us") for size, each in shared.items()),
        *(Result(f"working_{size}", each.working, "") for size, each in shared.items()),
        Result(f"apart_tasks_per_s_{most}", apart.tasks_per_s, "1/s"),
        Result(f"apart_postgres_cpu_us_per_task_{most}", apart.postgres_us, "us"),
        Result(f"apart_ratio_{most}_to_1", _ratio(apart, shared[1]), ""),
        *(Result(f"ratio_{size}_to_1", _ratio(shared.get(size), shared.get(1)), "") for size in SIZES[1:]),
    ]


def _each(option: str, values: Iterable[object]) -> list[tuple[str, str]]:
    """An option for each supervisor, with a value of its own."""
    return [(option, str(value)) for value in values]


def _ratio(above: Shared | None, below: Shared | None) -> float | None:
    if above is None or below is None or not above.tasks_per_s or not below.tasks_per_s:
        return None
    return above.tasks_per_s / below.tasks_per_s


def _measure(
    bench: Bench,
    size: int,
    tasks: int,
    *,
    partitions: int = 1,
    queues: Sequence[str] = ("default",),
    bindings: Sequence[Sequence[str]] = (),
) -> Shared:
    """Measure so many supervisors.

    :param bindings: options of each of them; empty: all serve everything.
    """
    with bench.server.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as connection, ExitStack() as stack:
        supervisors = []
        migrate(dsn, partitions=partitions)
        for number, options in zip(range(1, size + 1), bindings or [()] * size, strict=True):
            bench.progress(f"{size} supervisors: starting number {number}")
            supervisors.append(stack.enter_context(supervisor(dsn, 1, *options)))
        bench.progress(f"{size} supervisors: draining {tasks} tasks")
        first_id = queue_noops(connection, tasks, queues)
        before = bench.server.cpu_seconds()
        wait_for_task(connection, first_id + tasks - 1, supervisors)
        wait_for_all(connection, tasks, supervisors)
        after = bench.server.cpu_seconds()
        used = None if before is None or after is None else (after - before) / tasks * 1e6
        return Shared(rate(settled(connection)), _working(connection), used)


def _working(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(DISTINCT claimed_by) FROM scheduled_tasks_ended").fetchone()
    assert row is not None
    return int(row[0])
