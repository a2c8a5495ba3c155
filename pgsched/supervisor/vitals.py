"""The vital signs of one supervisor: what ``/healthz`` answers, and what keeps the watchdog quiet.

Health asks whether the work goes on now, so it is bad in an outage of the database; the watchdog asks whether it can go
on at all without a new process. Only looks; runs in the supervisor's loop.
"""

import math
from collections.abc import Callable

from pgsched.config import Settings
from pgsched.pool.pool import Pool
from pgsched.rules.lease import Trust
from pgsched.rules.states import SupervisorState
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.exchange import Exchange
from pgsched.supervisor.health import judge
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.liveness import Liveness, Part, patience


class Vitals:
    """Looks at the parts of a supervisor, and is told when they move.

    :param state: tells where the supervisor is in its life.
    :param exchange: tells which it has; None before the start.
    """

    def __init__(
        self,
        settings: Settings,
        trust: Trust,
        pool: Pool,
        holdings: Holdings,
        *,
        state: Callable[[], SupervisorState],
        exchange: Callable[[], Exchange | None],
    ) -> None:
        self._settings = settings
        self._trust = trust
        self._pool = pool
        self._holdings = holdings
        self._state = state
        self._exchange = exchange
        self.liveness = Liveness(patience(settings))

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the lease is renewed, the claim loop turns and the slots live; and the figures behind it."""
        now = lease_clock()
        exchange = self._exchange()
        return judge(
            self._state(),
            lease_remaining=self._trust.expires_at - now,
            since_turn=now - exchange.last_turn if exchange else math.inf,
            turn_within=self._settings.poll_interval + self._settings.db_timeout,
            slots=self._pool.slots(),
            held=len(self._holdings),
        )

    def stuck(self) -> list[str]:
        """Which of claim loop, lease and slots have stopped moving; told only while it serves."""
        return self.liveness.stuck() if self._state() is SupervisorState.RUNNING else []

    def tended(self) -> None:
        """The pool was tended."""
        self.liveness.tended(self._pool.slots())

    def turned(self) -> None:
        """The claim loop has come round."""
        self.liveness.moved(Part.CLAIMS)

    def renewed(self) -> None:
        """The lease was renewed, or could not be."""
        self.liveness.moved(Part.LEASE)
