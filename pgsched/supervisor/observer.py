"""What the supervisor tells the world: each happening is one call, and formatting is somebody else's duty.

``cli`` hands in an observer that feeds metrics and logs. Tests hand in their own.
"""

from collections.abc import Sequence
from typing import Protocol

from pgsched.model import Claim, Outcome, Verdict


class Observer(Protocol):
    """Receives every happening in the supervisor; must return at once and never raise."""

    def claimed(self, claims: Sequence[Claim], *, skipped: int, failed: int, seconds: float) -> None:
        """One claim statement answered: rows taken, advisory locks refused, attempts that failed."""

    def settled(self, verdicts: Sequence[Verdict], *, fenced: int, seconds: float) -> None:
        """One settle answered: the verdicts that were accepted, and how many more were too late (``fenced``)."""

    def outcome(self, claim: Claim, outcome: Outcome, verdict: Verdict | None) -> None:
        """An attempt ended; None means that the row is not ours any more and nothing is written."""

    def reaped(self, claims: Sequence[Claim]) -> None:
        """Claims of dead supervisors were taken over (also called with none: the reaper is alive)."""

    def sampled(self, name: str, value: float, **labels: str) -> None:
        """A gauge's new value."""

    def event(self, name: str, level: int, **fields: object) -> None:
        """Anything else; ``level`` is one of :mod:`logging`'s."""
