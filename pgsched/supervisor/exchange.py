"""The exchange: what happened to the last claims goes to the database, and new claims come back.

Settle and claim share one transaction and one round trip, one at a time; while one is under way, verdicts
gather for the next. Runs in the supervisor's loop. It decides nothing: ``rules/demand`` says what to claim,
``rules/verdict`` what to write.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress

from pgsched.errors import DatabaseError
from pgsched.model import Group, Verdict, VerdictKind, Want
from pgsched.rules.demand import Durations, plan
from pgsched.rules.lease import Trust
from pgsched.rules.wakeups import Wakeups
from pgsched.store.store import Store
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.observer import Observer
from pgsched.supervisor.survey import Survey

BATCH = 1000
"""Verdicts that one settle takes at most."""
GATHER, LONGEST_GATHER = 0.004, 0.02
"""Seconds that verdicts are given to gather while no slot is starving: a commit costs as much for one as for fifty. Of
tasks that take longer they may wait as long as one of those took, within bounds."""
PREFERENCE = 0.002
"""Seconds after a claim in which no scan gets in the way of the next hint, nor of the task that has just begun."""
STRAYS_FOR = 60.0
"""Seconds after a lost reply in which the server may still commit the claim; much longer than it may take."""
LOOK = 0.005
"""Seconds between two looks of a supervisor that is not woken although a slot starves."""


class LeaseLostError(Exception):
    """The lease has run out, by our own clock or by the database's; everything held is void."""


class Exchange:
    """Owns the verdicts that wait to be written and the survey that says what can be claimed."""

    def __init__(
        self,
        store: Store,
        trust: Trust,
        holdings: Holdings,
        backlog: Backlog,
        durations: Durations,
        observer: Observer,
        *,
        slots: Callable[[], int],
        free: Callable[[], int],
        occupied: Callable[[], int],
        feed: Callable[[], None],
        task_types: list[str],
        queues: list[str] | None,
        poll_interval: float,
        listens: bool,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self._store = store
        self._trust = trust
        self._holdings = holdings
        self._backlog = backlog
        self._durations = durations
        self._observer = observer
        self._slots = slots
        self._free = free
        self._occupied = occupied
        self._feed = feed
        self._task_types = task_types
        self._queues = queues
        self._poll_interval = poll_interval
        self._listens = listens
        self._wakeups = Wakeups()
        self._looked_at = self._claimed_at = -math.inf
        self.clock = clock
        self._survey = Survey()
        self._pending: list[Verdict] = []
        self._unsure: list[Verdict] = []
        self._wake = asyncio.Event()
        self._starved = asyncio.Event()
        self.supervisor_id = 0
        self.claiming = True
        self._halted = False
        self.last_turn = clock()
        self._unsure_until = -math.inf
        self.strays_suspected = False
        """A reply was lost: rows may be ours without our knowing; ``reaping`` looks for them."""
        self.quiet = asyncio.Lock()
        """Held while a claim is in flight, so that nobody mistakes its rows for strays."""

    def settle(self, verdict: Verdict) -> None:
        """Queue a verdict for the next turn."""
        self._pending.append(verdict)
        self._wake.set()

    def wake(self) -> None:
        """A slot or a row may be waiting: take the next turn now."""
        self._wake.set()

    def fed(self) -> None:
        """What waited has gone into slots, as far as there was room and there were claims."""
        if self._starving():
            self._starved.set()

    def notified(self, sender: int) -> None:
        """Somebody queued rows. Meant for another supervisor, it says nothing that our own looks do not."""
        if self._wakeups.asked:
            now = self.clock()
            self._wakeups.hinted(sender, now)
            self._survey.woken(now)
            self._wake.set()

    def unsettled(self) -> int:
        """Verdicts that are not yet known to be written."""
        return len(self._pending) + len(self._unsure)

    def suspect_strays(self) -> None:
        """A reply was lost that may have brought rows under our name."""
        self.strays_suspected = True
        self._unsure_until = self.clock() + STRAYS_FOR

    def strays_released(self, began: float) -> None:
        """Strays were looked for; that counts only when the server can no longer be at work on what was lost."""
        if began >= self._unsure_until:
            self.strays_suspected = False

    async def rest(self) -> None:
        """Claim nothing more, and wait until what a claim under way brings is in the books."""
        self.claiming = False
        async with self.quiet:
            return

    async def halt(self) -> None:
        """Begin no turn any more that somebody could cut off, and wait until the one under way has ended."""
        self._halted = True
        await self.rest()

    def begin(self, supervisor_id: int) -> None:
        """Start over under a new lease."""
        self.supervisor_id = supervisor_id
        self._wakeups = Wakeups()
        self.strays_suspected = False

    async def settle_rest(self, attempts: int) -> None:
        """Claim nothing more, and settle until nothing is left, the lease is lost, or so many attempts have failed."""
        self.claiming = self._halted = False
        failed = 0
        while self.unsettled() and failed < attempts:
            try:
                await self.turn()
            except LeaseLostError:
                return
            except DatabaseError as error:
                failed += 1
                self._observer.event("not_settled", logging.WARNING, tasks=self.unsettled(), error=str(error))

    async def leave(self, attempts: int) -> None:
        """Give the lease up; to be called when nothing is held any more.

        :param attempts: the first may only find out that a connection died long ago.
        """
        for attempt in range(1, attempts + 1):
            try:
                await self._store.strays(self.supervisor_id, [])
                await self._store.deregister(self.supervisor_id)
                return
            except DatabaseError as error:
                if attempt == attempts:
                    self._observer.event("not_deregistered", logging.WARNING, error=str(error))

    def forget(self) -> list[Verdict]:
        """Drop every verdict, because the lease under which they were earned is gone; return them."""
        dropped = self._unsure + self._pending
        self._pending, self._unsure = [], []
        return dropped

    async def turn(self) -> float:
        """Settle what has ended and claim what the slots can take; return the seconds to wait at most.

        :raises LeaseLostError: nothing may be written any more under this lease.
        :raises DatabaseError: nothing is known to be written; the verdicts are kept.
        """
        self._wake.clear()
        async with self.quiet:
            if self._halted:
                return self._poll_interval
            try:
                await self._settle_and_claim()
                self._feed()
                await self._mind_listening()
            except DatabaseError:
                self._wakeups.lost()
                raise
        self.last_turn = self.clock()
        return self._pause()

    async def _settle_and_claim(self) -> None:
        self._trust_or_lose()
        groups = await self._due_groups() if self.claiming else []
        if not self.claiming:
            # A drain began while the groups were looked up.
            groups = []
        decided = plan(
            groups,
            self._durations,
            slots=self._slots(),
            free=self._free(),
            occupied=self._occupied(),
            waiting=self._backlog.claims(),
        )
        wants = self._survey.floored(decided.wants)
        verdicts = self._unsure or self._take()
        if verdicts or wants:
            await self._exchange(verdicts, wants, decided.total)

    async def sleep(self, pause: float) -> None:
        """Wait until the next turn is worth its commit."""
        if not self._wake.is_set():
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                self._look()
                return
        if not self._starving():
            await self._gather()
        now = self.clock()
        if self._starving() and self._wakeups.streaming(now) and self._survey.next_due(now) > 0:
            # What ends and what is found go into one round trip.
            await asyncio.sleep(self._looked_at + LOOK - now)
            self._look()

    async def _gather(self) -> None:
        seconds = self._pending[0].seconds if self._pending else 0.0
        self._starved.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max(seconds, GATHER), LONGEST_GATHER)):
                await self._starved.wait()

    def _look(self) -> None:
        """Look for rows that nobody told of."""
        self._looked_at = now = self.clock()
        if self._survey.next_due(now) <= 0:
            return
        if self._wakeups.streaming(now):
            self._survey.woken(now)
        else:
            self._survey.doubt()

    def _starving(self) -> bool:
        starving = self._free() > 0 and not len(self._backlog)
        if starving:
            self._wakeups.starving(self.clock())
        return starving

    def _pause(self) -> float:
        if self._unsure or self._pending:
            return 0.0
        if not self._starving() or not self.claiming:
            return self._poll_interval
        now = self.clock()
        wait = min(self._survey.next_due(now), self._poll_interval)
        if self._survey.incomplete:
            wait = min(wait, max(self._survey.scan_in(now), self._claimed_at + PREFERENCE - now))
        if self._wakeups.streaming(now):
            wait = min(wait, LOOK)
        elif self._listens and not self._wakeups.asked:
            wait = min(wait, max(self._survey.rescan_in(now), LOOK))
        return max(wait, 0.0)

    def _trust_or_lose(self) -> None:
        if not self._trust.trusted(self.clock()):
            raise LeaseLostError

    async def _mind_listening(self) -> None:
        """Ask for wake-ups only when about to sleep: each one costs the producers' commits."""
        if not self._listens or not self.claiming:
            return
        wanted = self._wakeups.wanted(self.clock(), starving=self._starving())
        if wanted is self._wakeups.asked:
            return
        await self._store.set_listening(self.supervisor_id, wanted)
        self._wakeups.told(wanted, self.clock())
        # A row that was committed before the flag was seen brought no hint.
        self._survey.doubt()

    def _take(self) -> list[Verdict]:
        taken, self._pending = self._pending[:BATCH], self._pending[BATCH:]
        return taken

    async def _due_groups(self) -> list[Group]:
        now = self.clock()
        preferred = now - self._claimed_at < PREFERENCE and self._survey.due(now)
        if self._survey.wants_scan(now) and not preferred and (self._starving() or self._survey.due(now)):
            found = await self._store.discover(self._task_types, self._queues)
            then = self.clock()
            self._survey.found(found, then, then - now)
            now = then
        return self._survey.due(now)

    async def _exchange(self, verdicts: list[Verdict], wants: list[Want], total: int) -> None:
        started = self.clock()
        again = bool(self._unsure)
        self._unsure = verdicts
        try:
            answer = await self._store.exchange(self.supervisor_id, verdicts, wants, total, again=again)
        except DatabaseError:
            if wants:
                self.suspect_strays()
            raise
        if not answer.lease_alive:
            raise LeaseLostError
        self._unsure = []
        seconds = self.clock() - started
        if verdicts:
            self._close(verdicts, answer.settled, seconds)
        # This process may have been stopped while the answer lay in the socket; those claims are not ours any more.
        self._trust_or_lose()
        if wants:
            self._survey.claimed(wants, answer.claims, total)
            self._holdings.add(answer.claims)
            self._backlog.push(answer.claims)
            if answer.claims:
                self._claimed_at = self.clock()
                self._wakeups.found(self._claimed_at)
            self._observer.claimed(answer.claims, skipped=answer.skipped, failed=answer.failed, seconds=seconds)

    def _close(self, verdicts: list[Verdict], settled: list[bool], seconds: float) -> None:
        self._holdings.remove(*[verdict.claim for verdict in verdicts])
        accepted = verdicts if all(settled) else [v for v, ok in zip(verdicts, settled, strict=True) if ok]
        self._observer.settled(accepted, fenced=len(verdicts) - len(accepted), seconds=seconds)
        now = self.clock()
        for verdict in accepted:
            if verdict.kind is VerdictKind.RETRY:
                self._survey.requeued(verdict.claim, now + verdict.delay)
            elif verdict.kind is VerdictKind.RELEASED:
                self._survey.doubt()
