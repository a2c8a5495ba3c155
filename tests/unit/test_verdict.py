"""What is written for an outcome."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.model import Claim, Failure, Outcome, OutcomeKind, Retry, Verdict, VerdictKind
from pgsched.rules.verdict import decide, lost

FATAL = [
    OutcomeKind.RAISED,
    OutcomeKind.CRASHED,
    OutcomeKind.TIMED_OUT,
    OutcomeKind.OVER_MEMORY,
    OutcomeKind.LOST,
]
never = mock.Mock(side_effect=AssertionError("no dice are needed"))


def claim(retry_count: int = 0, max_retries: int = 3) -> Claim:
    return Claim(7, 1, "a", "default", 0, "{}", retry_count, max_retries, None, 0.0, "now")


def test_returned_is_completed_with_its_result() -> None:
    held = claim()
    verdict = decide(held, Outcome(OutcomeKind.RETURNED, 1.5, '{"x": 1}'), Retry(), never)
    assert verdict == Verdict(held, VerdictKind.COMPLETED, 1.5, result='{"x": 1}')


def test_cancelled_writes_nothing() -> None:
    assert decide(claim(), Outcome(OutcomeKind.CANCELLED, 1.0), Retry(), never) is None


@pytest.mark.parametrize("retry_count", [0, 3])
def test_interrupted_is_released_however_many_retries_are_left(retry_count: int) -> None:
    verdict = decide(claim(retry_count), Outcome(OutcomeKind.INTERRUPTED, 2.0), Retry(), never)
    assert verdict is not None
    assert (verdict.kind, verdict.delay, verdict.failure) == (VerdictKind.RELEASED, 0.0, None)


@pytest.mark.parametrize("kind", FATAL)
def test_failure_is_retried_after_a_delay_while_retries_are_left(kind: OutcomeKind) -> None:
    failure = Failure(error="boom")
    verdict = decide(claim(2), Outcome(kind, 1.0, failure=failure), Retry(base=2, cap=600), lambda: 0.5)
    assert verdict == Verdict(claim(2), VerdictKind.RETRY, 1.0, 4.0, None, kind, failure)


@pytest.mark.parametrize("kind", FATAL)
def test_failure_without_retries_left_is_final(kind: OutcomeKind) -> None:
    verdict = decide(claim(3), Outcome(kind, 1.0), Retry(max=50), never)
    assert verdict is not None
    assert verdict.kind is VerdictKind.FAILED


@pytest.mark.parametrize("kind", FATAL)
@pytest.mark.parametrize("retry_count", [0, 3])
def test_failure_always_has_words(kind: OutcomeKind, retry_count: int) -> None:
    verdict = decide(claim(retry_count), Outcome(kind, 1.0), Retry(), lambda: 0.5)
    assert verdict is not None
    assert verdict.failure is not None
    assert verdict.failure.error


def test_a_claim_that_was_reaped_says_why_it_failed() -> None:
    failure = lost().failure
    assert failure is not None
    assert failure.error == "its supervisor died or lost its lease"


@given(max_retries=st.integers(0, 20), kinds=st.lists(st.sampled_from(list(OutcomeKind)), min_size=60, max_size=60))
def test_f66_executions_are_max_retries_plus_one_for_any_mixture_of_deaths(
    max_retries: int, kinds: list[OutcomeKind]
) -> None:
    retry_count = executions = 0
    for kind in kinds:
        verdict = decide(claim(retry_count, max_retries), Outcome(kind, 1.0), Retry(), lambda: 0.5)
        executions += kind in FATAL
        if verdict is None or verdict.kind is VerdictKind.COMPLETED:
            continue
        if verdict.kind is VerdictKind.FAILED:
            assert executions == max_retries + 1
            assert retry_count == max_retries
            return
        retry_count += verdict.kind is VerdictKind.RETRY
    assert executions <= max_retries
