"""What is written for an outcome.

The only place that decides between another attempt and the end. Every kind of death passes through here,
also the one that only a reaper saw, so a task that kills its supervisor ends after as many executions as
one that raises: ``max_retries`` + 1. Runs in the supervisor; pure.
"""

from collections.abc import Callable

from pgsched.model import Claim, Failure, Outcome, OutcomeKind, Retry, Verdict, VerdictKind
from pgsched.rules.retry import delay

_WORDS = {
    OutcomeKind.RAISED: "the task failed",
    OutcomeKind.CRASHED: "the worker died",
    OutcomeKind.TIMED_OUT: "stopped at its time limit",
    OutcomeKind.OVER_MEMORY: "stopped at its memory limit",
    OutcomeKind.LOST: "its supervisor died or lost its lease",
}
"""What a failure says that came without words."""


def decide(claim: Claim, outcome: Outcome, retry: Retry, random: Callable[[], float]) -> Verdict | None:
    """Say what to write for an outcome, or None when the row is no longer ours to write.

    :param retry: the task type's, for the delay; how many retries there are is the row's own ``max_retries``.
    :param random: uniform on [0, 1); used only when a retry is granted.
    """
    kind = outcome.kind
    if kind is OutcomeKind.RETURNED:
        return Verdict(claim, VerdictKind.COMPLETED, outcome.seconds, 0.0, outcome.result, kind)
    if kind is OutcomeKind.CANCELLED:
        return None
    if kind is OutcomeKind.INTERRUPTED:
        return Verdict(claim, VerdictKind.RELEASED, outcome.seconds, 0.0, None, kind, outcome.failure)
    failure = outcome.failure or Failure(error=_WORDS[kind])
    if claim.retry_count < claim.max_retries:
        wait = delay(retry, claim.retry_count, random)
        return Verdict(claim, VerdictKind.RETRY, outcome.seconds, wait, None, kind, failure)
    return Verdict(claim, VerdictKind.FAILED, outcome.seconds, 0.0, None, kind, failure)


def lost() -> Outcome:
    """The outcome of a claim that was reaped."""
    return Outcome(OutcomeKind.LOST, 0.0, failure=Failure(error=_WORDS[OutcomeKind.LOST]))
