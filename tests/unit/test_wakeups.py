"""When a supervisor asks to be woken, and when it would rather look by itself."""

import pytest

from pgsched.rules.wakeups import (
    ALONE_HINTS,
    CALM,
    CROWD,
    CROWD_HINTS,
    LONGEST_LULL,
    LULL,
    SATURATED,
    SPAN,
    STREAM,
    Wakeups,
)


def asked(now: float = 10.0) -> Wakeups:
    """One that sleeps, and has told the database so."""
    wakeups = Wakeups()
    wakeups.starving(now)
    assert wakeups.wanted(now, starving=True)
    wakeups.told(True, now)
    return wakeups


def crowd(wakeups: Wakeups, now: float) -> None:
    """Hints come thick, and are declined."""
    for hint in range(CROWD_HINTS):
        wakeups.hinted(hint, now)
    wakeups.starving(now)
    assert not wakeups.wanted(now, starving=True)
    wakeups.told(False, now)


def lull_after(wakeups: Wakeups, now: float) -> float:
    """How long it then takes until it asks again."""
    for step in range(1, 1001):
        if wakeups.wanted(now + step / 1000, starving=True):
            return step / 1000
    raise AssertionError("it never asks again")


def test_nobody_asks_while_no_slot_starves() -> None:
    assert not Wakeups().wanted(10.0, starving=False)


@pytest.mark.parametrize(
    ("senders", "hints", "kept"),
    [
        (1, 1, True),
        (1, ALONE_HINTS - 1, True),
        (1, ALONE_HINTS, False),
        (CROWD - 1, CROWD_HINTS, True),
        (CROWD, CROWD_HINTS - 1, True),
        (CROWD, CROWD_HINTS, False),
    ],
)
def test_hints_that_come_thick_are_declined(senders: int, hints: int, kept: bool) -> None:
    wakeups = asked(10.0)
    for hint in range(hints):
        wakeups.hinted(hint % senders, 10.0 + SPAN * hint / hints)
    assert wakeups.wanted(10.0 + SPAN, starving=True) is kept


def test_hints_that_come_now_and_then_are_welcome_whoever_sends_them() -> None:
    wakeups = asked(10.0)
    for hint in range(10 * ALONE_HINTS):
        now = 10.0 + SPAN * hint
        wakeups.starving(now)
        wakeups.hinted(hint, now)
        assert wakeups.wanted(now, starving=True)


def test_once_declined_they_are_asked_for_when_nothing_has_been_found_for_a_while() -> None:
    wakeups = asked(10.0)
    crowd(wakeups, 12.0)
    wakeups.found(12.03)
    assert not wakeups.wanted(12.03 + LULL - 0.001, starving=True)
    assert wakeups.wanted(12.03 + LULL + 0.001, starving=True)


def test_hints_in_vain_do_not_come_back_at_once() -> None:
    wakeups = asked(10.0)
    crowd(wakeups, 12.0)
    assert lull_after(wakeups, 12.0) == pytest.approx(LULL, abs=0.002)


def test_each_time_that_hints_are_thick_again_soon_doubles_the_lull_up_to_a_bound() -> None:
    wakeups, now, lulls = asked(10.0), 12.0, []
    for _ in range(7):
        crowd(wakeups, now)
        lulls.append(lull_after(wakeups, now))
        now += 1.0
        wakeups.told(True, now)
    assert lulls == pytest.approx([min(LULL * 2**turn, LONGEST_LULL) for turn in range(7)], abs=0.002)
    crowd(wakeups, now + CALM + 0.1)
    assert lull_after(wakeups, now + CALM + 0.1) == pytest.approx(LULL, abs=0.002)


def test_who_is_saturated_declines_and_does_not_lengthen_the_lull() -> None:
    wakeups = asked(10.0)
    assert wakeups.wanted(10.0 + SATURATED, starving=False)
    assert not wakeups.wanted(10.0 + SATURATED + 0.01, starving=False)
    wakeups.told(False, 10.3)
    assert lull_after(wakeups, 10.3) == pytest.approx(LULL, abs=0.002)


def test_what_may_be_lost_is_said_again_whatever_it_was() -> None:
    wakeups = asked(10.0)
    wakeups.lost()
    assert wakeups.wanted(10.01, starving=True) is not wakeups.asked
    assert wakeups.wanted(20.0, starving=True) is not wakeups.asked


def test_rows_stream_when_some_were_just_found_and_no_hint_tells_of_the_next() -> None:
    wakeups = asked(10.0)
    wakeups.found(12.0)
    assert not wakeups.streaming(12.0), "hints do"
    crowd(wakeups, 12.0)
    assert wakeups.streaming(12.0 + STREAM - 0.001)
    assert not wakeups.streaming(12.0 + STREAM + 0.001)
