"""Which verdicts the next settle takes, whatever became of those before."""

from collections.abc import Iterable

import pytest

from pgsched.model import Claim, Failure, OutcomeKind, Verdict, VerdictKind
from pgsched.supervisor.unwritten import BATCH, LONGEST, SIZE, Unwritten


def verdict(task_id: int, result: str | None = None, failure: Failure | None = None) -> Verdict:
    claim = Claim(task_id, 1, "a", "default", 0, "{}", 0, 3, None, 0.0, "")
    return Verdict(claim, VerdictKind.COMPLETED, 0.1, 0.0, result, OutcomeKind.RETURNED, failure)


PART = "x" * (SIZE // 12)


class Desk:
    """Verdicts, and a database in which somebody keeps certain rows locked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.unwritten = Unwritten(lambda: self.now, lambda: 1.0)
        self.locked: set[int] = set()
        self.written: list[int] = []
        self.tries = 0

    def add(self, ids: Iterable[int]) -> None:
        self.unwritten.pending += [verdict(each) for each in ids]

    def settle(self) -> list[int]:
        """One settle; returns what it took."""
        taken = [each.claim.task_id for each in self.unwritten.take().verdicts]
        if self.locked & set(taken):
            self.now += 1.0
            self.tries += 1
            self.unwritten.locked()
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


@pytest.mark.parametrize("locked", [{7}, set(range(0, 300, 30))], ids=["one", "some"])
def test_rows_that_somebody_keeps_locked_delay_no_other_for_long(desk: Desk, locked: set[int]) -> None:
    desk.locked = locked
    desk.add(range(300))
    while len(desk.written) < 300 - len(locked):
        desk.settle()
    assert desk.tries <= 25 * len(locked), "they were found by halving"
    assert len(desk.unwritten) == len(locked)
    for _ in range(len(locked) + 1):
        desk.settle()
        desk.settle()
    began, before = desk.now, desk.tries
    for number in range(1000, 4000):
        desk.add([number])
        desk.settle()
        desk.now += 0.1
    assert desk.tries - before < (desk.now - began) / LONGEST * 2 + 3, "they are tried now and then"
    assert len(desk.unwritten) < len(locked) + 40
    desk.locked = set()
    desk.now += LONGEST
    while desk.unwritten:
        desk.settle()
    assert sorted(desk.written) == [*range(300), *range(1000, 4000)]


def test_rows_that_meet_another_lock_do_not_wait_with_those_that_are_locked(desk: Desk) -> None:
    desk.locked = {1, 20}
    desk.add([1])
    for _ in range(9):
        desk.settle()
    assert desk.unwritten.pause() > 0.0
    desk.add(range(10, 30))
    began = desk.now
    while len(desk.unwritten) > 2:
        desk.settle()
    assert desk.now - began < 10.0


def test_late_ones_are_bounded_in_size_too(desk: Desk) -> None:
    desk.unwritten.pending += [verdict(1), *[verdict(2, "x" * (SIZE // 3))] * 5]
    desk.locked = {1}
    desk.settle()
    desk.locked = set()
    sizes = []
    while desk.unwritten:
        sizes.append(len(desk.settle()))
    assert max(sizes) <= 3


def test_what_is_late_is_taken_alone_and_as_what_may_be_written(desk: Desk) -> None:
    desk.locked = {1}
    desk.add([1])
    desk.settle()
    assert not desk.unwritten.take().verdicts, "others go first"
    desk.now += desk.unwritten.pause()
    late = desk.unwritten.take()
    assert (len(late.verdicts), late.resent, late.alone) == (1, True, True)
    assert desk.unwritten.take() == late, "its answer was lost"


def test_at_the_end_what_is_locked_has_no_pause_and_lets_others_go_first(desk: Desk) -> None:
    desk.locked = {1}
    desk.add([1])
    for _ in range(9):
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
