"""The ideal queue that a backlog of mixed lengths is held against."""

import pytest

from benchmarks.mixed import ideal_starts


def test_one_worker_takes_one_task_after_the_other() -> None:
    assert ideal_starts([3.0, 1.0, 2.0], 1) == [0.0, 3.0, 4.0]


def test_short_tasks_pass_a_long_one_on_the_other_worker() -> None:
    assert ideal_starts([5.0, 1.0, 1.0, 1.0], 2) == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize("workers", [2, 16])
def test_with_as_many_workers_as_tasks_all_start_at_once(workers: int) -> None:
    assert ideal_starts([1.0] * 2, workers) == [0.0, 0.0]
