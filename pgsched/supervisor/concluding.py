"""Outcome → verdict: what the rules say of each attempt that has ended goes to the exchange.

Whatever is reported of a claim that is not held any more changes nothing. Runs in the supervisor's loop.
"""

import random
from collections.abc import Callable, Iterable

from pgsched.model import Claim, Outcome, OutcomeKind, Retry, Verdict
from pgsched.rules.demand import Durations
from pgsched.rules.verdict import decide
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.observer import Observer


class Concluder:
    """Concludes claims.

    :param retry: tells how tasks of a type are tried again.
    :param settle: takes verdicts that are to be written.
    :param running: whether claims that nobody has begun may be begun later.
    """

    def __init__(
        self,
        holdings: Holdings,
        backlog: Backlog,
        durations: Durations,
        observer: Observer,
        *,
        retry: Callable[[str], Retry],
        settle: Callable[[Verdict], None],
        running: Callable[[], bool],
    ) -> None:
        self._holdings = holdings
        self._backlog = backlog
        self._durations = durations
        self._observer = observer
        self._retry = retry
        self._settle = settle
        self._running = running

    def ended(self, ended: Iterable[tuple[Claim, Outcome]]) -> None:
        """Take what the pool tells, once for every claim dispatched."""
        unbegun: list[Claim] = []
        running = self._running()
        for claim, outcome in ended:
            if claim in self._holdings:
                if running and outcome.kind is OutcomeKind.INTERRUPTED and not outcome.seconds:
                    unbegun.append(claim)
                else:
                    self.conclude(claim, outcome)
        # They waited behind a task that killed their worker, and have lost nothing by that.
        self._backlog.put_back(unbegun)

    def conclude(self, claim: Claim, outcome: Outcome) -> None:
        """Decide what is to be written of a claim that is held."""
        if outcome.kind in (OutcomeKind.RETURNED, OutcomeKind.RAISED):
            self._durations.observe(claim.task_type, outcome.seconds)
        verdict = decide(claim, outcome, self._retry(claim.task_type), random.random)
        self._observer.outcome(claim, outcome, verdict)
        if verdict is None:
            self._holdings.remove(claim)
        else:
            self._settle(verdict)

    def give_back(self, claims: Iterable[Claim]) -> None:
        """Release claims that nobody has begun, at no cost to them."""
        for claim in claims:
            self.conclude(claim, Outcome(OutcomeKind.INTERRUPTED, 0.0))
