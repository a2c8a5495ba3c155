"""What the demo's progress counts, and the line that it draws."""

import io

import pytest

from pgsched.cli.progress import Progress
from pgsched.model import Claim, Failure, Outcome, OutcomeKind
from pgsched.rules.lease import LEASE_LOST


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claim(retry_count: int = 0, *, task_id: int = 1, fence: int = 1) -> Claim:
    return Claim(task_id, fence, "t", "q", 0, "{}", retry_count, 1, None, 0.0, "now")


@pytest.mark.parametrize(
    ("kind", "retry_count", "completed", "failed"),
    [
        (OutcomeKind.RETURNED, 0, 1, 0),
        (OutcomeKind.RAISED, 0, 0, 0),
        (OutcomeKind.RAISED, 1, 0, 1),
        (OutcomeKind.CRASHED, 1, 0, 1),
        (OutcomeKind.INTERRUPTED, 1, 0, 0),
        (OutcomeKind.CANCELLED, 0, 0, 1),
    ],
)
def test_only_the_last_attempt_of_a_task_counts(
    kind: OutcomeKind, retry_count: int, completed: int, failed: int
) -> None:
    progress = Progress(1, 2, io.StringIO())
    progress.on_outcome(claim(retry_count), Outcome(kind, 1.0))
    assert (progress.completed, progress.failed) == (completed, failed)
    assert progress.finished.is_set() == bool(completed or failed)


@pytest.mark.parametrize("late", [OutcomeKind.CANCELLED, OutcomeKind.RETURNED])
def test_a_task_whose_lease_was_lost_counts_once_and_when_it_ends(late: OutcomeKind) -> None:
    progress = Progress(2, 2, io.StringIO())
    progress.on_outcome(claim(), Outcome(late, 1.0, failure=Failure(error=LEASE_LOST)))
    assert progress.failed == 0
    progress.on_outcome(claim(fence=2), Outcome(OutcomeKind.RETURNED, 1.0))
    assert (progress.completed, progress.failed, progress.finished.is_set()) == (1, 0, False)
    progress.on_outcome(claim(task_id=2), Outcome(OutcomeKind.RETURNED, 1.0))
    assert progress.finished.is_set()


def test_a_task_whose_last_lease_was_lost_has_failed() -> None:
    progress = Progress(1, 2, io.StringIO())
    last = claim()._replace(retry_count=3, max_retries=3)
    progress.on_outcome(last, Outcome(OutcomeKind.CANCELLED, 1.0, failure=Failure(error=LEASE_LOST)))
    assert (progress.failed, progress.finished.is_set()) == (1, True)


def test_the_line_tells_rate_running_failed_and_the_time_left() -> None:
    clock = Clock()
    progress = Progress(100, 2, io.StringIO(), clock=clock)
    for number in range(20):
        progress.on_outcome(claim(task_id=number), Outcome(OutcomeKind.RETURNED, 1.0))
    clock.now += 2
    assert progress.line() == "20/100 files (20%), 10/s, 2 running, 0 failed, 8s left"


def test_the_rate_forgets_what_is_long_past() -> None:
    clock = Clock()
    progress = Progress(100, 2, io.StringIO(), clock=clock)
    for number in range(50):
        progress.on_outcome(claim(task_id=number), Outcome(OutcomeKind.RETURNED, 1.0))
    for _ in range(30):
        clock.now += 1
        progress.line()
    assert "0/s" in progress.line()
    assert "? left" in progress.line()


def test_the_last_line_is_done() -> None:
    clock = Clock()
    progress = Progress(2, 8, io.StringIO(), clock=clock)
    progress.on_outcome(claim(), Outcome(OutcomeKind.RETURNED, 1.0))
    progress.on_outcome(claim(1, task_id=2), Outcome(OutcomeKind.RAISED, 1.0))
    clock.now += 1
    assert progress.line() == "2/2 files (100%), 2/s, 0 running, 1 failed, done"


def test_a_terminal_gets_one_line_that_moves() -> None:
    stream = Terminal()
    progress = Progress(2, 1, stream, clock=Clock())
    progress.draw()
    progress.draw()
    assert stream.getvalue().count("\r") == 2
    assert "\n" not in stream.getvalue()
    assert "[" in stream.getvalue()


def test_a_file_gets_whole_lines() -> None:
    stream = io.StringIO()
    Progress(2, 1, stream, clock=Clock()).draw()
    assert stream.getvalue() == "0/2 files (0%), 0/s, 1 running, 0 failed, ? left\n"
