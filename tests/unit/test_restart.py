"""When a worker that died for no task's sake is replaced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.rules.restart import Delay, GiveUp, Intensity


def loop(intensity: Intensity, lives: float, until: float, **death: float | bool) -> tuple[int, float, bool]:
    """Let a worker die ``lives`` seconds after each start; return starts, seconds, and whether it ended."""
    now, starts = 0.0, 0
    while now < until:
        starts += 1
        now += lives
        match intensity.died(now, **death):  # type: ignore[arg-type]
            case Delay(seconds):
                now += seconds
            case GiveUp():
                return starts, now, True
    return starts, now, False


def test_delays_grow_and_end() -> None:
    intensity = Intensity(limit=4, base=1.0, cap=5.0)
    now, answers = 0.0, []
    for _ in range(5):
        answer = intensity.died(now)
        answers.append(answer)
        now += answer.seconds if isinstance(answer, Delay) else 0
    assert answers == [Delay(1.0), Delay(2.0), Delay(4.0), Delay(5.0), GiveUp(5)]


@pytest.mark.parametrize("lives", [0.0, 1.0, 10.0, 59.0])
def test_f24_boot_loop_ends_after_few_starts(lives: float) -> None:
    starts, seconds, ended = loop(Intensity(), lives, until=600.0, lived=lives)
    assert ended
    assert starts == 7
    assert seconds < 14 + 7 * lives


def test_f24_slow_boots_that_fail_end_too() -> None:
    starts, _, ended = loop(Intensity(), lives=60.0, until=3600.0, lived=0.0)
    assert ended
    assert starts == 7


def test_long_life_begins_anew() -> None:
    intensity = Intensity(limit=2, within=60.0)
    assert loop(intensity, 90.0, until=3600.0, lived=90.0)[2] is False
    assert isinstance(intensity.died(3700.0), Delay)
    assert intensity.died(3710.0) == GiveUp(3)


def test_long_calm_begins_anew() -> None:
    intensity = Intensity(limit=1, within=60.0)
    assert isinstance(intensity.died(0.0), Delay)
    assert isinstance(intensity.died(301.0), Delay)
    assert isinstance(intensity.died(500.0), GiveUp)


def test_f04_all_workers_killed_at_once_are_one_step() -> None:
    intensity = Intensity(limit=1)
    answers = [intensity.died(5.0 + i / 1000) for i in range(64)]
    assert all(isinstance(answer, Delay) and answer.seconds <= 0.1 for answer in answers)
    assert intensity.died(6.0) == GiveUp(2)


def test_f18_kills_from_outside_never_end_the_service() -> None:
    starts, seconds, ended = loop(Intensity(), 0.05, until=300.0, lived=0.01, killed=True)
    assert not ended
    assert starts > 280
    assert seconds < 302


def test_kills_do_not_hide_a_boot_loop() -> None:
    intensity, now = Intensity(limit=3), 0.0
    for _ in range(4):
        now += 2.0
        assert isinstance(intensity.died(now, killed=True), Delay)
        now += 20.0
        answer = intensity.died(now)
    assert answer == GiveUp(4)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 70), st.booleans()), max_size=50))
def test_delays_stay_within_the_cap(deaths: list[tuple[float, float, bool]]) -> None:
    intensity, now = Intensity(), 0.0
    for passed, lived, killed in deaths:
        now += passed
        answer = intensity.died(now, lived, killed)
        if isinstance(answer, GiveUp):
            assert not killed
            assert answer.deaths > 6
            return
        assert 0 < answer.seconds <= 10.0
