"""Watches the claims in hand: which were cancelled or lost meanwhile, and which wait in the wrong place.

The database is asked about tasks that run for long, and about everything when a hint says that somebody
cancelled. Runs in the supervisor's loop under a lease.
"""

from collections.abc import Callable

from pgsched.errors import DatabaseError
from pgsched.model import Claim, Outcome, OutcomeKind
from pgsched.pool.pool import Pool
from pgsched.rules import demand
from pgsched.store.store import Store
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.holdings import Holdings

REFRESH = 60.0
"""Seconds between two looks at most, so that the article's reaper (five minutes) sees that tasks are alive."""
LONG = 1.0
"""Seconds of run time from which on a claim is confirmed at every turn."""


class Watcher:
    """One turn confirms the claims of long-running tasks and gives back what waits too long."""

    def __init__(
        self,
        store: Store,
        pool: Pool,
        holdings: Holdings,
        backlog: Backlog,
        *,
        supervisor_id: int,
        interval: float,
        on_outcome: Callable[[Claim, Outcome], None],
    ) -> None:
        self._store = store
        self._pool = pool
        self._holdings = holdings
        self._backlog = backlog
        self._supervisor_id = supervisor_id
        self._interval = interval
        self._on_outcome = on_outcome
        self._hinted = False

    def hint(self) -> None:
        """Somebody cancelled: the next turn asks about every claim."""
        self._hinted = True

    async def turn(self) -> float:
        """Look once; return the seconds until the next look."""
        hinted, self._hinted = self._hinted, False
        try:
            await self._confirm(hinted)
        except DatabaseError:
            self._hinted = self._hinted or hinted
            raise
        if demand.stale(self._backlog.oldest(), free=self._pool.free()):
            self._give_back()
        return min(self._interval, REFRESH)

    async def _confirm(self, everything: bool) -> None:
        claims = [running.claim for running in self._pool.running() if everything or running.seconds >= LONG]
        if everything:
            claims += self._holdings.claims()
        asked = {(claim.task_id, claim.fence): claim for claim in claims}
        if not asked:
            return
        ours = await self._store.confirm(self._supervisor_id, list(asked))
        self._drop([claim for fenced, claim in asked.items() if fenced not in ours])

    def _drop(self, gone: list[Claim]) -> None:
        """All at once: somebody may have cancelled thousands."""
        running = {running.claim[:2] for running in self._pool.running()}
        held: dict[int, Claim] = {}
        for claim in gone:
            # What runs is judged by its own fence: the books may hold a later claim of the same task by now.
            if claim[:2] in running:
                self._pool.stop_task(claim.task_id, OutcomeKind.CANCELLED, "cancelled", fence=claim.fence)
            elif claim in self._holdings:
                held[claim.task_id] = claim
        if held:
            self._backlog.put_back(self._pool.recall())
            for waiting in self._backlog.discard(lambda waiting: waiting.task_id in held):
                self._on_outcome(held[waiting.task_id], Outcome(OutcomeKind.CANCELLED, 0.0))

    def _give_back(self) -> None:
        """Every slot is held by something long: another host may be idle."""
        for claim in self._backlog.take_all():
            self._on_outcome(claim, Outcome(OutcomeKind.INTERRUPTED, 0.0))
