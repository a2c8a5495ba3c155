"""The delay before a retry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.model import Retry
from pgsched.rules.retry import delay


@pytest.mark.parametrize(
    ("retry_count", "ceiling"),
    [(0, 2.0), (1, 4.0), (2, 8.0), (5, 64.0), (6, 100.0), (7, 100.0), (2**31 - 1, 100.0)],
)
def test_ceiling_doubles_until_the_cap(retry_count: int, ceiling: float) -> None:
    assert delay(Retry(base=2, cap=100), retry_count, lambda: 1.0) == ceiling


def test_jitter_is_full() -> None:
    retry = Retry(base=2, cap=100)
    assert delay(retry, 3, lambda: 0.0) == 0.0
    assert delay(retry, 3, lambda: 0.25) == 4.0


@given(
    base=st.floats(0, 1e9, exclude_max=True),
    cap=st.floats(0, 1e9, exclude_max=True),
    retry_count=st.integers(0, 2**31),
    dice=st.floats(0, 1, exclude_max=True),
)
def test_any_delay_is_within_its_bounds(base: float, cap: float, retry_count: int, dice: float) -> None:
    seconds = delay(Retry(base=base, cap=cap), retry_count, lambda: dice)
    assert 0 <= seconds <= cap
    assert retry_count > 900 or seconds <= base * 2.0**retry_count
    assert seconds <= delay(Retry(base=base, cap=cap), retry_count + 1, lambda: dice)


@pytest.mark.parametrize("values", [{"max": -1}, {"max": True}, {"base": -1}, {"cap": float("nan")}, {"cap": 1e9}])
def test_a_retry_that_makes_no_sense_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"Retry\\({next(iter(values))}="):
        Retry(**values)  # type: ignore[arg-type]
