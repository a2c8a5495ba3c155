"""What a slot keeps of what it has sent to its worker: the claims, and the stop that it has ordered. Pure values."""

from typing import NamedTuple

from pgsched.model import Claim, OutcomeKind


class Sent(NamedTuple):
    """A claim that was sent to the worker, and its limits."""

    sequence: int
    claim: Claim
    timeout: float
    """Seconds; infinite without a limit."""
    memory: int | None
    """Bytes."""
    brief: bool


class Order(NamedTuple):
    """What the worker's present task was told."""

    sequence: int
    kind: OutcomeKind
    text: str
