"""What counts as growth, and that the load holds all that it should."""

import psycopg
import pytest

from benchmarks.soak import UNITS, growth, table_sizes
from benchmarks.soaking import Load, app


def test_growth_compares_the_first_third_with_the_last() -> None:
    points = [(float(at), value) for at, value in enumerate([100, 900, 100, 0, 0, 0, 110, 110, 5])]
    assert growth(points) == pytest.approx(0.1)
    assert growth(points[::-1]) == pytest.approx(-1 / 11)


def test_what_stays_does_not_grow_and_what_begins_with_nothing_does() -> None:
    assert growth([(1.0, 0.0)] * 9) == 0.0
    assert (growth([(1.0, 0.0)] * 3 + [(2.0, 1.0)] * 3) or 0.0) > 1
    assert growth([(1.0, 5.0)] * 2) is None


def test_the_load_holds_every_task_type_and_every_figure_has_a_unit() -> None:
    load = Load("", 500)
    tasks = [task for turn in range(4) for task in load._round(turn)]
    assert {task_type for task_type, *_ in tasks} == set(app.tasks)
    assert sum(task_type == "noop" and not delay for task_type, _, delay, _ in tasks) == 4 * 250
    assert all(("_mb" in name) == (unit == "MiB") for name, unit in UNITS.items())


def test_the_size_of_a_table_is_that_of_its_partitions(dsn: str) -> None:
    ended = (
        "INSERT INTO scheduled_tasks (task_type, run_at, status, finished_at) VALUES ('x', now(), 'completed', now())"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = table_sizes(connection)
        connection.execute(ended)
        after = table_sizes(connection)
    assert after["ended_table_mb"] >= before["ended_table_mb"] + 8192
    assert after["ended_index_mb"] > before["ended_index_mb"]
    assert after["live_table_mb"] == before["live_table_mb"]
