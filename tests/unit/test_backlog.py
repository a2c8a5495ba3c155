"""The bounded queue and the books: order, giving back, and what counts as held."""

import pytest

from pgsched.model import Claim
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.holdings import Holdings


def claim(task_id: int, fence: int = 1, task_type: str = "a") -> Claim:
    return Claim(task_id, fence, task_type, "default", 0, "{}", 0, 3, None, 0.0, "")


def test_feed_goes_from_the_front_until_a_claim_is_refused() -> None:
    backlog = Backlog()
    backlog.push([claim(1), claim(2), claim(3)])
    sent: list[int] = []

    def dispatch(one: Claim) -> bool:
        if one.task_id == 3:
            return False
        sent.append(one.task_id)
        return True

    assert backlog.feed(dispatch, lambda: False) == 2
    assert sent == [1, 2]
    assert [one.task_id for one in backlog.claims()] == [3]


def passed(types: str, room: int, tried: list[int]) -> tuple[Backlog, int]:
    """Feed claims of these types, numbered from 1, to so many slots, of which none knows `n` or `m`."""
    backlog = Backlog()
    backlog.push(claim(number, task_type=name) for number, name in enumerate(types, 1))

    def dispatch(one: Claim) -> bool:
        nonlocal room
        tried.append(one.task_id)
        taken = one.task_type not in "nm" and room > 0
        room -= taken
        return taken

    return backlog, backlog.feed(dispatch, lambda: room > 0)


@pytest.mark.parametrize(
    ("types", "room", "tried", "left"),
    [
        ("nana", 9, [1, 2, 4], [1, 3]),
        ("anmnmaa", 9, [1, 2, 3, 6, 7], [2, 3, 4, 5]),
        ("nanaa", 2, [1, 2, 4], [1, 3, 5]),
        ("aan", 1, [1, 2], [2, 3]),
        ("nn", 9, [1], [1, 2]),
    ],
)
def test_a_claim_that_is_refused_lets_others_pass_while_a_slot_is_idle(
    types: str, room: int, tried: list[int], left: list[int]
) -> None:
    found: list[int] = []
    backlog, sent = passed(types, room, found)
    assert found == tried
    assert [one.task_id for one in backlog.claims()] == left
    assert sent == len(types) - len(left)


def test_what_was_passed_is_kept_when_dispatching_fails() -> None:
    backlog = Backlog()
    backlog.push([claim(1, task_type="n"), claim(2), claim(3, task_type="n"), claim(4, task_type="x"), claim(5)])

    def dispatch(one: Claim) -> bool:
        if one.task_type == "x":
            raise ValueError("broken")
        return one.task_type == "a"

    with pytest.raises(ValueError, match="broken"):
        backlog.feed(dispatch, lambda: True)
    assert [one.task_id for one in backlog.claims()] == [1, 3, 4, 5]


def test_what_is_put_back_goes_first_and_keeps_its_order() -> None:
    backlog = Backlog()
    backlog.push([claim(3)])
    backlog.put_back([claim(1), claim(2)])
    assert [one.task_id for one in backlog.take_all()] == [1, 2, 3]
    assert len(backlog) == 0


def test_the_oldest_waits_by_the_clock_given() -> None:
    now = [5.0]
    backlog = Backlog(clock=lambda: now[0])
    assert backlog.oldest() == 0.0
    backlog.push([claim(1)])
    now[0] = 7.5
    backlog.push([claim(2)])
    assert backlog.oldest() == 2.5


def test_discard_takes_out_only_what_is_named() -> None:
    backlog = Backlog()
    backlog.push([claim(1), claim(2), claim(3)])
    assert [one.task_id for one in backlog.discard(lambda one: one.task_id in {2, 9})] == [2]
    assert [one.task_id for one in backlog.claims()] == [1, 3]


def test_a_claim_is_held_by_its_fence_and_not_by_its_task_alone() -> None:
    holdings = Holdings()
    assert holdings.add([claim(1, fence=4)]) == []
    assert claim(1, fence=4) in holdings
    assert claim(1, fence=3) not in holdings
    holdings.remove(claim(1, fence=3))
    assert holdings.ids() == [1], "an earlier claim's end must not close the present one"
    again = claim(1, fence=4)._replace(run_at="later")
    assert again not in holdings, "another row, in a table that was emptied with RESTART IDENTITY"
    holdings.remove(again)
    assert holdings.ids() == [1]
    assert holdings.add([claim(1, fence=6), claim(2, fence=1)]) == [claim(1, fence=4)]
    holdings.remove(claim(1, fence=6), claim(2, fence=1))
    assert len(holdings) == 0
