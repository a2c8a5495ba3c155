"""For how long a supervisor looks for rows whose INSERT did not see that it wants to be woken."""

import math

import pytest

from pgsched.model import Horizon
from pgsched.rules.latecomers import SOONEST, Latecomers


def asked(now: float = 10.0) -> Latecomers:
    latecomers = Latecomers()
    latecomers.told(True, now)
    return latecomers


def test_nobody_is_looked_for_before_wake_ups_are_asked_for_nor_once_they_are_declined() -> None:
    assert Latecomers().look_in(10.0) == math.inf
    latecomers = asked()
    latecomers.told(False, 11.0)
    assert latecomers.look_in(11.0) == math.inf


def test_without_a_transaction_under_way_the_first_look_is_the_last() -> None:
    latecomers = asked()
    assert latecomers.look_in(10.0) == 0
    latecomers.looking(Horizon(7, 7), 10.0)
    assert latecomers.look_in(10.0) == math.inf


def test_looks_go_on_until_all_that_were_under_way_at_the_first_are_over() -> None:
    latecomers = asked()
    for horizon, expected in [((5, 7), True), ((6, 9), True), ((7, 12), False)]:
        latecomers.looking(Horizon(*horizon), 10.0)
        assert latecomers.expected is expected, "those that began later have seen the flag"


def test_each_look_comes_after_as_long_again_as_it_has_taken_so_far() -> None:
    latecomers = asked()
    looks = []
    now = 10.0
    for _ in range(5):
        latecomers.looking(Horizon(5, 7), now)
        now += latecomers.look_in(now)
        looks.append(now - 10)
    assert looks == pytest.approx([SOONEST * factor for factor in (1, 2, 4, 8, 16)])


def test_who_asks_again_begins_again() -> None:
    latecomers = asked()
    latecomers.looking(Horizon(5, 7), 10.0)
    latecomers.told(True, 20.0)
    assert latecomers.look_in(20.0) == 0
    latecomers.looking(Horizon(8, 9), 20.0)
    assert latecomers.expected
