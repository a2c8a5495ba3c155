"""The supervisor: starts the pool, serves one tenure after another, drains, stops.

Its life is a row of verbs (:meth:`Supervisor.run`). Signals only set an event; the drain does the work. What
a duty does is in the duty's own file.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from pgsched.config import Settings
from pgsched.errors import DatabaseError, ExitCode
from pgsched.model import Claim, OutcomeKind, Verdict
from pgsched.pool.pool import END_WITHIN, Ended, Pool
from pgsched.rules import demand
from pgsched.rules.backoff import Backoff
from pgsched.rules.lease import LEASE_LOST, Trust, margin
from pgsched.rules.states import SUPERVISOR, SupervisorState, advance
from pgsched.store.store import Store
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.changing import Announcer, Changes
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.concluding import Concluder
from pgsched.supervisor.duty import Duty
from pgsched.supervisor.exchange import Exchange, LeaseLostError
from pgsched.supervisor.feeding import Feeder
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.listening import Listener
from pgsched.supervisor.liveness import Part
from pgsched.supervisor.observer import Observer
from pgsched.supervisor.parting import leave, settle_rest
from pgsched.supervisor.pruning import Pruner
from pgsched.supervisor.reaping import Reaper
from pgsched.supervisor.sampling import Books, samplers
from pgsched.supervisor.stopping import Stopping
from pgsched.supervisor.tenure import Expiry, Renewal, race
from pgsched.supervisor.vitals import Vitals
from pgsched.supervisor.watching import Watcher

TEND = 0.05
"""Seconds between two looks at the pool: so late is it noticed that a task has turned out long."""
STUCK = 4 * demand.AHEAD_SECONDS
"""Seconds of run time after which the tasks that wait in the worker's socket behind it are taken back."""
FINAL_ATTEMPTS = 2
FINAL_SECONDS = 10.0
"""How often the last words are tried at least, and for how long in any case: what a server takes to restart."""
PATIENCE = 1.0
"""Seconds that the database gets after a second signal to answer what is under way, and again for the last words."""


class Supervisor:
    """One parent process. ``run`` returns when it was stopped; it is used once."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        pool: Pool,
        observer: Observer,
        *,
        version: str,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.state = SupervisorState.STARTING
        self._store = store
        self._pool = pool
        self._observer = observer
        self._on_ready = on_ready
        self._holdings = Holdings()
        self._backlog = Backlog()
        self._durations = demand.Durations()
        self._trust = Trust(settings.lease)
        self._stop_asked = asyncio.Event()
        self._force_asked = asyncio.Event()
        self._stopping = Stopping(pool)
        self._feeder = Feeder(pool, self._backlog, self._durations, may=self._may_feed, fed=self._fed)
        self.changes = Changes(settings, pool, self._backlog, observer, version=version, give_back=self._give_back)
        self._concluder = Concluder(
            self._holdings,
            self._backlog,
            self._durations,
            observer,
            retry=self.changes.retry,
            settle=self._settle,
            running=lambda: self.state is SupervisorState.RUNNING,
        )
        self._exchange: Exchange | None = None
        self.vitals = Vitals(
            settings, self._trust, pool, self._holdings, state=lambda: self.state, exchange=lambda: self._exchange
        )

    def stop(self) -> None:
        """Ask for the orderly stop; asked again, for the immediate one. Safe in a signal callback of the loop."""
        if self._stop_asked.is_set():
            self._force_asked.set()
        self._stop_asked.set()

    async def run(self) -> ExitCode:
        """Start, serve until stopped, stop.

        :raises PgschedError: it could not start, or the pool gave up. Whatever was held is given back first
            where the database answers.
        """
        try:
            await race(self._start(), self._stop_asked.wait())
            if not self._stop_asked.is_set():
                self._become(SupervisorState.RUNNING)
                self.vitals.liveness.moved()
                # Whatever becomes of leases: figures are wanted most while there is none.
                sampling = [duty.run() for duty in self._samplers()]
                await race(self._serve(), self._tend_pool(), self._drain_when_asked(), *sampling)
        finally:
            await self._finish()
        return ExitCode.FORCED if self._force_asked.is_set() else ExitCode.OK

    async def _start(self) -> None:
        await self._store.open()
        await self._store.check_schema()
        task_types = await self._pool.start()
        level = logging.INFO if task_types else logging.WARNING
        self._observer.event("pool_started", level, task_types=sorted(task_types))
        self.changes.begin(task_types)
        settings = self.settings
        self._exchange = Exchange(
            self._store,
            self._trust,
            self._holdings,
            self._backlog,
            self._durations,
            self._observer,
            slots=lambda: self._pool.settings.processes,
            free=self._pool.free,
            occupied=self._feeder.occupied,
            feed=self._feeder.feed,
            task_types=sorted(task_types),
            queues=list(settings.queues) or None,
            poll_interval=settings.poll_interval,
            listens=self._listens,
        )

    @property
    def _listens(self) -> bool:
        return not (self.settings.poll_only or self.settings.pooled)

    async def _serve(self) -> None:
        """One tenure after another, until cancelled."""
        assert self._exchange is not None
        while True:
            supervisor_id = await self._register()
            self._exchange.begin(supervisor_id)
            try:
                await race(*(duty.run() for duty in self._duties(self._exchange, supervisor_id)))
            except LeaseLostError:
                await self._void(self._exchange, supervisor_id)

    async def _register(self) -> int:
        backoff = Backoff(base=0.1, cap=5.0)
        while True:
            started = lease_clock()
            self.changes.told = self.changes.identity
            self.vitals.liveness.moved(Part.CLAIMS, Part.LEASE)
            try:
                supervisor_id = await self._store.register(self.changes.told, self.settings.lease)
            except DatabaseError:
                await asyncio.sleep(backoff.failed(random.random))
                continue
            self._trust.renewed(started)
            self._observer.event("registered", logging.INFO, supervisor=supervisor_id, lease=self.settings.lease)
            self._on_ready()
            return supervisor_id

    def _duties(self, exchange: Exchange, supervisor_id: int) -> list[Duty]:
        settings, store, observer = self.settings, self._store, self._observer
        watcher = Watcher(
            store,
            self._pool,
            self._holdings,
            self._backlog,
            supervisor_id=supervisor_id,
            interval=settings.poll_interval,
            on_outcome=self._concluder.conclude,
        )
        watch = Duty("watch", watcher.turn, observer)
        reaper = Reaper(
            store,
            self.changes.identity,
            self._holdings,
            exchange,
            observer,
            supervisor_id=supervisor_id,
            interval=settings.reap_interval,
            on_outcome=self._concluder.conclude,
        )
        renew = Duty("renewal", self._renewal(supervisor_id).turn, observer, on_turn=self.vitals.renewed)
        announce = Duty("announce", Announcer(store, self.changes, supervisor_id=supervisor_id).turn, observer)
        self.changes.on_change = announce.wake
        duties = [
            Duty("exchange", exchange.turn, observer, sleep=exchange.sleep, on_turn=self.vitals.turned),
            renew,
            Duty("expiry", Expiry(self._trust).turn, observer),
            Duty("reap", reaper.turn, observer, sleep=reaper.sleep),
            watch,
            announce,
        ]
        if self._listens:

            def on_cancelled() -> None:
                watcher.hint()
                watch.wake()

            listener = Listener(store, on_queued=exchange.notified, on_cancelled=on_cancelled, on_scaled=renew.wake)
            duties.append(Duty("listen", listener.turn, observer))
        if settings.prune_older_than is not None:
            duties.append(Duty("prune", Pruner(store, observer, older_than=settings.prune_older_than).turn, observer))
        return duties

    def _renewal(self, supervisor_id: int) -> Renewal:
        settings, store, trust, take = self.settings, self._store, self._trust, self.changes.take
        return Renewal(store, trust, self._observer, supervisor_id=supervisor_id, lease=settings.lease, on_wanted=take)

    async def _void(self, exchange: Exchange, supervisor_id: int) -> None:
        """The lease is gone, and with it every claim: stop the workers, write nothing."""
        dropped = exchange.forget()
        self._observer.event(
            "lease_lost", logging.ERROR, supervisor=supervisor_id, held=len(self._holdings), unwritten=len(dropped)
        )
        self._observer.settled([], fenced=len(dropped), seconds=0.0)
        self._holdings.clear()
        self._backlog.take_all()
        self._pool.recall()
        # What ran under it counts as an attempt, which is the reaper's to tell: this lease is not given up any more.
        exchange.supervisor_id = 0
        # The database gives the tasks away when the margin is over; by then nothing of ours may run.
        end = lease_clock() + margin(self.settings.lease) / 2
        # Under the next lease we may claim these very tasks again: not beside their own old workers.
        stopped = self._stopping.until_idle(
            lambda: self._stopping.stop(OutcomeKind.CANCELLED, LEASE_LOST, grace=max(end - lease_clock(), 0.0))
        )
        # One that the kernel cannot end was sent SIGKILL by then: it runs no code any more, and its fence is old.
        await race(stopped, asyncio.sleep(end - lease_clock() + END_WITHIN))
        if left := [running.claim.task_id for running in self._pool.running()]:
            self._observer.event("not_ended", logging.WARNING, tasks=left)

    async def _tend_pool(self) -> None:
        """Keep limits and slots, whatever the database does."""
        while True:
            pause = self._pool.turn()
            self.vitals.tended()
            for running in self._pool.running():
                if running.seconds >= STUCK:
                    self._backlog.put_back(self._pool.recall(running.slot))
            self._feeder.feed()
            await asyncio.sleep(min(pause, TEND))

    async def _drain_when_asked(self) -> None:
        assert self._exchange is not None
        await race(self.changes.run(self._exchange), self._stop_asked.wait())
        self._become(SupervisorState.DRAINING)
        await race(self._exchange.cease(), self._overdue())
        self._give_back_waiting()
        await race(self._stopping.until_idle(), self._force_asked.wait(), asyncio.sleep(self.settings.drain_timeout))
        if self._pool.running() and not self._force_asked.is_set():
            stopped = self._stopping.until_idle(lambda: self._stopping.stop(OutcomeKind.INTERRUPTED, "drain"))
            # A worker that the kernel cannot end is left to `Pool.stop`.
            await race(stopped, self._force_asked.wait(), asyncio.sleep(self._pool.settings.grace + END_WITHIN))
        # Cut off, a claim that was committed would leave its rows under our name, and a release look like a fenced one.
        await race(self._exchange.halt(), self._overdue())

    async def _overdue(self) -> None:
        """A second signal came, and the database has had its time."""
        await self._force_asked.wait()
        await asyncio.sleep(PATIENCE)

    async def _finish(self) -> None:
        """Kill what is left, write what is known, give the lease up: never raises, ends within a few deadlines."""
        if self.state is not SupervisorState.STOPPING:
            self._become(SupervisorState.STOPPING)
        exchange = self._exchange
        if exchange is not None and exchange.supervisor_id:
            # Killing workers may take longer than a short lease.
            renewal = self._renewal(exchange.supervisor_id)
            renewing = asyncio.create_task(Duty("renewal", renewal.turn, self._observer).run())
            await self._pool.stop()
            self._give_back_waiting()
            # No longer than systemd waits (``ops/unit.py``).
            enough = asyncio.sleep(FINAL_SECONDS + 2 * self.settings.db_timeout)
            await race(self._say_last_words(exchange), self._overdue(), enough)
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        else:
            await self._pool.stop()
        await self._store.close()
        self._become(SupervisorState.STOPPED)

    async def _say_last_words(self, exchange: Exchange) -> None:
        await settle_rest(exchange, self._observer, FINAL_ATTEMPTS, FINAL_SECONDS)
        if not self._holdings:
            await leave(self._store, self._observer, exchange.supervisor_id, FINAL_ATTEMPTS)

    def _give_back_waiting(self) -> None:
        self._give_back([*self._pool.recall(), *self._backlog.take_all()])

    def _give_back(self, claims: list[Claim]) -> None:
        self._concluder.give_back(claims)

    def on_outcomes(self, ended: list[Ended]) -> None:
        """What the pool calls, once for every claim dispatched."""
        self._stopping.noted()
        self._concluder.ended(ended)
        self._feeder.soon()
        if self._exchange is not None:
            # Whether or not there is anything to write, a slot may be free.
            self._exchange.rest.wake()

    def on_worker(self) -> None:
        """What the pool tells when a worker is ready: there is room for a claim."""
        self.vitals.tended()
        self._feeder.soon()
        if self._exchange is not None:
            self._exchange.rest.wake()

    def _settle(self, verdict: Verdict) -> None:
        if self._exchange is not None:
            self._exchange.settle(verdict)

    def _may_feed(self) -> bool:
        return self.state is SupervisorState.RUNNING and self._trust.trusted(lease_clock())

    def _fed(self) -> None:
        if self._exchange is not None:
            self._exchange.rest.fed()

    def _samplers(self) -> list[Duty]:
        lease = self.settings.lease
        books = Books(self._trust, self._observer, self._pool, lease=lease, gauges=self._gauges)
        return samplers(books, self._store, self._observer)

    def _gauges(self) -> dict[str, float]:
        return {"held": len(self._holdings), "backlog": len(self._backlog), "active": len(self._pool.running())}

    def _become(self, state: SupervisorState) -> None:
        self.state = advance(SUPERVISOR, self.state, state)
        self._observer.event("state", logging.INFO, state=str(state))
