"""Delays after failures."""

from hypothesis import given
from hypothesis import strategies as st

from pgsched.rules.backoff import Backoff


def test_ceiling_doubles_until_the_cap_and_begins_anew() -> None:
    backoff = Backoff(base=1.0, cap=5.0)
    assert [backoff.failed(lambda: 1.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.failures == 5
    backoff.succeeded()
    assert backoff.failed(lambda: 1.0) == 1.0


@given(failures=st.integers(1, 200), dice=st.floats(0, 1, exclude_max=True))
def test_no_attempt_comes_sooner_than_half_the_ceiling(failures: int, dice: float) -> None:
    backoff = Backoff(base=0.5, cap=30.0)
    for n in range(failures):
        ceiling = min(30.0, 0.5 * 2**n)
        assert ceiling / 2 <= backoff.failed(lambda: dice) <= ceiling


def test_a_row_of_failures_without_end_does_not_overflow() -> None:
    backoff = Backoff()
    backoff.failures = 10**6
    assert backoff.failed(lambda: 1.0) == 30.0
