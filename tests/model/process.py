"""A supervisor process as far as the protocol goes: what it holds, what it believes, what it has not heard.

Its books and its decisions are pgsched's own; only the pool is missing: a rule of the machine says when a task begins
and ends.
"""

from collections.abc import Callable
from typing import NamedTuple

from pgsched.model import Claim, Failure, Outcome, OutcomeKind, Retry, Verdict
from pgsched.rules.lease import Trust
from pgsched.rules.verdict import decide
from pgsched.supervisor.holdings import Holdings

LEASE = 100.0
"""Seconds. What passes at once is a multiple of 40: no sum of such steps comes near to the end of a lease (100), of the
trust in it (90), or of any patience in the statements (60, 300), so that the moment between two transactions does not
matter."""
STEP = 40.0
RETRY = Retry(base=20.0, cap=20.0)

Decide = Callable[[Claim, Outcome, Retry, Callable[[], float]], Verdict | None]


class Rules(NamedTuple):
    """Where a process gets its decisions from; a broken twin has others."""

    trust: type[Trust] = Trust
    decide: Decide = decide
    late_trust: bool = False
    """Whether a renewal counts from its answer."""


class Process:
    """One life of a supervisor's process.

    :param host: processes with the same host see each other's pids.
    :param zero: what its monotonic clock shows when the database's shows 0.
    """

    def __init__(self, rules: Rules, slot: int, host: int, ticks: int, zero: float) -> None:
        self.rules = rules
        self.slot = slot
        self.host = host
        self.pid = 100 + slot
        self.ticks = ticks
        self.zero = zero
        self.id = 0
        self.trust = rules.trust(LEASE)
        self.holdings = Holdings()
        self.waiting: list[Claim] = []
        self.running: list[Claim] = []
        self.pending: list[Verdict] = []
        self.unsure: list[Verdict] = []
        self.strays_suspected = False

    def void(self) -> None:
        """The lease is gone, and everything with it."""
        self.holdings.clear()
        self.waiting, self.running, self.pending, self.unsure = [], [], [], []
        self.strays_suspected = False

    def hold(self, claims: list[Claim]) -> None:
        self.holdings.add(claims)
        self.waiting += claims

    def drop(self, claim: Claim) -> None:
        """It is not ours any more."""
        self.holdings.remove(claim)
        self.waiting = [each for each in self.waiting if each[:2] != claim[:2]]
        self.running = [each for each in self.running if each[:2] != claim[:2]]

    def conclude(self, claim: Claim, outcome: Outcome) -> None:
        if claim not in self.holdings:
            return
        verdict = self.rules.decide(claim, outcome, RETRY, lambda: 1.0)
        if verdict is None:
            self.holdings.remove(claim)
        else:
            self.pending.append(verdict)

    def end(self, claim: Claim, kind: OutcomeKind) -> None:
        """The task that runs comes to an end."""
        self.running.remove(claim)
        failure = None if kind is OutcomeKind.RETURNED else Failure(error=str(kind))
        self.conclude(claim, Outcome(kind, 1.0, failure=failure))
