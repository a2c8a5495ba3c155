"""Which verdicts the next settle takes, whatever became of those before."""

from collections.abc import Iterable

import pytest

from pgsched.model import Claim, Failure, OutcomeKind, Verdict, VerdictKind
from pgsched.supervisor.unwritten import BATCH, SIZE, Unwritten


def verdict(task_id: int, result: str | None = None, failure: Failure | None = None) -> Verdict:
    claim = Claim(task_id, 1, "a", "default", 0, "{}", 0, 3, None, 0.0, "")
    return Verdict(claim, VerdictKind.COMPLETED, 0.1, 0.0, result, OutcomeKind.RETURNED, failure)


PART = "x" * (SIZE // 12)


class Desk:
    """Verdicts, and a database that never finishes when one of certain rows is among them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.unwritten = Unwritten(lambda: self.now, lambda: 1.0)
        self.locked: set[int] = set()
        self.written: list[int] = []

    def add(self, ids: Iterable[int]) -> None:
        self.unwritten.pending += [verdict(each) for each in ids]

    def settle(self) -> list[int]:
        """One settle; returns what it took."""
        taken = [each.claim.task_id for each in self.unwritten.take().verdicts]
        if self.locked & set(taken):
            self.now += 9.0
            self.unwritten.overdue()
        else:
            self.now += 0.01
            self.written += taken
            self.unwritten.answered()
        return taken


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_was_not_answered_is_taken_again_as_it_was(desk: Desk) -> None:
    desk.add([1, 2])
    first = desk.unwritten.take()
    desk.add([3])
    again = desk.unwritten.take()
    assert (first.resent, again.resent) == (False, True)
    assert again.verdicts == first.verdicts
    desk.unwritten.answered()
    assert [each.claim.task_id for each in desk.unwritten.take().verdicts] == [3]


def test_a_settle_takes_no_more_than_a_batch(desk: Desk) -> None:
    desk.add(range(BATCH + 1))
    assert (len(desk.settle()), len(desk.settle()), len(desk.unwritten)) == (BATCH, 1, 0)


@pytest.mark.parametrize(
    "large",
    [
        verdict(1, "x" * (SIZE // 3)),
        verdict(
            1,
            None,
            Failure(error=PART, traceback=PART, stderr=PART, stack=PART),
        ),
    ],
    ids=["results", "failures"],
)
def test_a_settle_takes_no_more_than_its_size(desk: Desk, large: Verdict) -> None:
    desk.unwritten.pending += [large] * 5
    sizes = []
    while desk.unwritten:
        sizes.append(len(desk.unwritten.take().verdicts))
        desk.unwritten.answered()
    assert sizes == [3, 2]


def test_one_verdict_is_taken_however_large_it_is(desk: Desk) -> None:
    desk.unwritten.pending += [verdict(1, "x" * (SIZE + 1)), verdict(2)]
    assert [len(desk.settle()), len(desk.settle())] == [1, 1]


def test_a_row_that_somebody_keeps_locked_delays_no_other_for_long(desk: Desk) -> None:
    desk.locked = {7}
    desk.add(range(100))
    while len(desk.written) < 99:
        desk.settle()
    assert desk.now - 100.0 < 9.0 * 12, "it was found by halving"
    assert len(desk.unwritten) == 1
    began, tries = desk.now, 0
    for number in range(1000, 4000):
        desk.add([number])
        tries += desk.settle() == [7]
        desk.now += 0.1
    assert desk.written[99:] == [number for number in range(1000, 4000) if number in desk.written]
    assert len(desk.unwritten) <= 1 + tries
    assert tries * 9.0 < (desk.now - began) / 4, "it is tried now and then"
    desk.locked.clear()
    desk.now += 60.0
    while desk.unwritten:
        desk.settle()
    assert sorted(desk.written) == [*range(100), *range(1000, 4000)]


def test_what_is_late_is_taken_alone_and_as_what_may_be_written(desk: Desk) -> None:
    desk.locked = {1}
    desk.add([1])
    desk.settle()
    assert not desk.unwritten.take().verdicts, "others go first"
    late = desk.unwritten.take()
    assert (len(late.verdicts), late.resent, late.alone) == (1, True, True)
    assert desk.unwritten.take() == late, "its answer was lost"


def test_what_is_late_does_not_wait_for_a_database_that_was_away(desk: Desk) -> None:
    """Nothing is answered then, and that is no fault of these."""
    desk.add([1])
    for _ in range(50):
        desk.unwritten.take()
        desk.now += 9.0
        desk.unwritten.overdue()
    assert desk.unwritten.pause() == 0.0
    desk.settle()
    desk.settle()
    assert desk.written == [1]


def test_what_is_late_has_a_pause_when_others_are_answered(desk: Desk) -> None:
    desk.locked = {1}
    desk.add([1])
    for _ in range(3):
        desk.settle()
    desk.add([2])
    desk.settle()
    desk.settle()
    desk.settle()
    assert desk.unwritten.pause() > 0.0
    desk.unwritten.hurried = True
    assert desk.unwritten.pause() == 0.0
    desk.add([3])
    assert (desk.settle(), desk.settle()) == ([3], [1])


def test_forgetting_drops_everything(desk: Desk) -> None:
    desk.locked = {1}
    desk.add([1])
    desk.settle()
    desk.add([2])
    desk.unwritten.take()
    desk.add([3])
    assert sorted(each.claim.task_id for each in desk.unwritten.forget()) == [1, 2, 3]
    assert (len(desk.unwritten), desk.unwritten.take().verdicts) == (0, [])
