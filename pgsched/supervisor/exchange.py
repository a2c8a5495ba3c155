"""The exchange: what happened to the last claims goes to the database, and new claims come back.

Settle and claim share one transaction and one round trip, one at a time; while one is under way, verdicts
gather for the next. Runs in the supervisor's loop. It decides nothing: ``rules/demand`` says what to claim,
``rules/verdict`` what to write.
"""

import asyncio
import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress

from pgsched.errors import DatabaseError, DeadlineError, LockedError
from pgsched.model import Group, Verdict, VerdictKind, Want
from pgsched.rules.demand import LIMITS, Durations, Plan, plan
from pgsched.rules.lease import Trust
from pgsched.rules.pace import Pace
from pgsched.store.store import Exchanged, Readied, Store
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.clock import lease_clock
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.observer import Observer
from pgsched.supervisor.resting import Rest
from pgsched.supervisor.standby import Standby
from pgsched.supervisor.survey import Survey
from pgsched.supervisor.unwritten import Parcel, Unwritten

STRAYS_FOR = 900.0
"""Seconds after a lost reply in which the server may still commit the claim: thrice the longest ``--db-timeout``."""


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
        self.clock = clock
        self._pace = Pace()
        self._plenty = False
        self._survey = Survey()
        self.rest = Rest(
            self._survey, starving=self._starving, poll_interval=poll_interval, listens=listens, clock=clock
        )
        self._unwritten = Unwritten(clock)
        self.supervisor_id = 0
        self.claiming = True
        self._halted = False
        self.last_turn = clock()
        self._unsure_until = -math.inf
        self.strays_suspected, self.suspicion = False, asyncio.Event()
        """A reply was lost: rows may be ours without our knowing; ``reaping``, woken by the event, looks for them."""
        self.quiet = self._standby = Standby(store, self._collect, self._answered)
        """Held while no claim may be in flight but one's own, so that nobody mistakes its rows for strays."""

    def settle(self, verdict: Verdict) -> None:
        """Queue a verdict for the next turn."""
        self._unwritten.pending.append(verdict)
        self.rest.wake()

    def unsettled(self) -> int:
        """Verdicts that are not yet known to be written."""
        return len(self._unwritten)

    def suspect_strays(self) -> None:
        """A reply was lost that may have brought rows under our name."""
        if not self.strays_suspected:
            self.suspicion.set()
        self.strays_suspected = True
        self._unsure_until = self.clock() + STRAYS_FOR

    def strays_released(self, began: float) -> None:
        """Strays were looked for; that counts only when the server can no longer be at work on what was lost."""
        if began >= self._unsure_until:
            self.strays_suspected = False

    def serve(self, task_types: list[str]) -> None:
        """Claim these types from now on; to be called in `quiet`: what a claim under way brings is of the old ones."""
        self._task_types = task_types
        self._survey.keep(task_types)
        self._standby.stand_down()
        self.rest.wake()

    async def cease(self) -> None:
        """Claim nothing more, and wait until what a claim under way brings is in the books."""
        self.claiming = False
        self._standby.stand_down()
        with suppress(DatabaseError, LeaseLostError):
            # The next turn meets the same.
            async with self.quiet:
                return

    async def halt(self) -> None:
        """Begin no turn any more that somebody could cut off, and wait until the one under way has ended."""
        self._halted = True
        await self.cease()

    def begin(self, supervisor_id: int) -> None:
        """Start over under a new lease."""
        self.supervisor_id = supervisor_id
        self.rest.begin()
        self._standby.begin()
        self.strays_suspected = False

    def conclude(self) -> None:
        """Claim nothing more; turns write what is left."""
        self.claiming = self._halted = False
        self._unwritten.hurried = True

    def forget(self) -> list[Verdict]:
        """Drop every verdict, because the lease under which they were earned is gone; return them."""
        return self._unwritten.forget()

    async def turn(self) -> float:
        """Settle what has ended and claim what the slots can take; return the seconds to wait at most.

        :raises LeaseLostError: nothing may be written any more under this lease.
        :raises DatabaseError: nothing is known to be written; the verdicts are kept.
        """
        self.rest.woken()
        try:
            async with self.quiet:
                if self._halted:
                    return self._poll_interval
                await self._settle_and_claim()
                await self._mind_listening()
        except DatabaseError:
            self.rest.lost()
            # What was written may be undone where the server comes back, and rows be ours again.
            self.suspect_strays()
            raise
        self.last_turn = self.clock()
        pause = self.rest.pause() if self.claiming else self._poll_interval
        return min(pause, self._unwritten.pause()) if self.unsettled() else pause

    async def _settle_and_claim(self) -> None:
        self._trust_or_lose()
        groups: list[Group] = []
        failure: DatabaseError | None = None
        try:
            groups = await self._due_groups() if self.claiming else []
        except DatabaseError as error:
            # Whatever keeps us from seeing what is due, what has ended is to be written.
            failure = error
            if isinstance(error, DeadlineError):
                self._survey.late(self.clock())
                groups = self._survey.due(self.clock())
        if not self.claiming:
            # A drain began while the groups were looked up.
            groups = []
        wants, total = self._plan(groups)
        parcel = self._unwritten.take()
        if parcel.alone:
            wants, total = [], 0
        if parcel.verdicts or wants:
            await self._exchange(parcel, wants, total)
            if isinstance(failure, DeadlineError):
                # The database is there, and the store has told that it was late.
                return
        if failure is not None:
            raise failure

    def _plan(self, groups: list[Group]) -> Plan:
        decided = plan(
            groups,
            self._durations,
            slots=self._slots(),
            free=self._free(),
            occupied=self._occupied(),
            waiting=self._backlog.claims(),
            limits=LIMITS._replace(waiting=self._pace.backlog(LIMITS.waiting)),
        )
        return decided._replace(wants=self._survey.floored(decided.wants))

    async def sleep(self, pause: float) -> None:
        """Wait until the next turn is worth its commit, for so many seconds at most."""
        self._ready()
        try:
            await self.rest.sleep(pause, self._unwritten.pending)
        finally:
            self._standby.stand_down()

    def notified(self, sender: int) -> None:
        """Somebody queued rows."""
        sent = self._starving() and self._trust.trusted(self.clock()) and self._standby.send()
        self.rest.notified(sender, served=sent)

    def _ready(self) -> None:
        """Prepare the claim that a hint will be followed by, when nothing but a hint is waited for."""
        if self.claiming and not self.unsettled() and self.rest.expecting():
            wants, total = self._plan(self._survey.remembered(self.clock()))
            if wants:
                self._standby.ready(self._store.ready_claim(self.supervisor_id, wants, total))

    def _answered(self) -> None:
        """What a hint has sent is answered. Where all is well the task begins from here; the duty need not wake up."""
        arrived = self._standby.arrived()
        if arrived is None:
            self.rest.wake()
            return
        with suppress(LeaseLostError):
            # Trust that has ended is not there in the next turn either.
            self._take_in(arrived.answer, [], arrived.wants, arrived.total, arrived.seconds)
        self.rest.served()

    async def _collect(self, sent: Readied, at: float) -> None:
        """Take in the answer to a claim that a hint has sent."""
        try:
            answer = await self._store.answer(sent)
        except BaseException:
            # Also when we are cancelled: what was claimed is in no book.
            self.suspect_strays()
            raise
        self._take_in(answer, [], sent.wants, sent.total, self.clock() - at)

    def _starving(self) -> bool:
        return self._free() > 0 and not len(self._backlog)

    def _trust_or_lose(self) -> None:
        if not self._trust.trusted(self.clock()):
            raise LeaseLostError

    async def _mind_listening(self) -> None:
        wanted = self.rest.wanted() if self.claiming else None
        if wanted is not None:
            await self._store.set_listening(self.supervisor_id, wanted)
            self.rest.told(wanted)

    async def _due_groups(self) -> list[Group]:
        now = self.clock()
        due = self._survey.due(now)
        if not (due or self.rest.starving()) or (due and self.rest.preferring() and not self._survey.overdue(now)):
            return due
        if self._survey.wants_scan(now):
            if self.rest.latecomers.expected:
                self.rest.latecomers.looking(await self._store.horizon(), now)
                now = self.clock()
            self._survey.scanning()
            found = await self._store.discover(self._task_types, self._queues)
            then = self.clock()
            self._survey.found(found, then, then - now)
            now = then
        return self._survey.due(now)

    async def _exchange(self, parcel: Parcel, wants: list[Want], total: int) -> None:
        started = self.clock()
        verdicts, resent, _ = parcel
        try:
            answer = await self._store.exchange(self.supervisor_id, verdicts, wants, total, resent=resent)
        except LockedError as error:
            self._unwritten.locked()
            if len(verdicts) == 1:
                [verdict] = verdicts
                self._observer.event("settle_waits", logging.WARNING, task_id=verdict.claim.task_id, error=str(error))
            raise
        self._take_in(answer, verdicts, wants, total, self.clock() - started)

    def _take_in(
        self, answer: Exchanged, verdicts: list[Verdict], wants: list[Want], total: int, seconds: float
    ) -> None:
        if not answer.lease_alive:
            raise LeaseLostError
        verdicts, settled = self._answered_for(verdicts, answer)
        # This process may have been stopped while the answer lay in the socket; those claims are not ours any more.
        trusted = self._trust.trusted(self.clock())
        if answer.claims and trusted:
            if replaced := self._holdings.add(answer.claims):
                # Cancelled and queued anew before anybody could tell us: the earlier claim is not to be begun any more.
                self._backlog.discard(set(replaced).__contains__)
            self._backlog.push(answer.claims)
            # Slots wait for it; the books below can wait for them.
            self._feed()
            if not verdicts:
                # We were at rest, and so were the workers: the one that was woken may wait for this very processor.
                os.sched_yield()
        if verdicts:
            self._close(verdicts, settled, seconds)
        if not trusted:
            if answer.claims:
                # They are in no book, and a renewal whose answer is on its way may still save the lease.
                self.suspect_strays()
            raise LeaseLostError
        self._plenty = len(answer.claims) >= total if wants else len(self._backlog) > 0
        if wants:
            self._survey.claimed(wants, answer.claims, total)
            self._survey.refused(answer.refused, self.clock())
            if answer.claims:
                self.rest.found()
            self._observer.claimed(answer.claims, skipped=answer.skipped, failed=answer.failed, seconds=seconds)

    def _answered_for(self, verdicts: list[Verdict], answer: Exchanged) -> tuple[list[Verdict], list[bool]]:
        """The verdicts of which it is known whether they were written; the others will be sent again."""
        self._unwritten.answered([verdicts[index] for index in answer.unsure])
        if not answer.unsure:
            return verdicts, answer.settled
        # What has kept the database from answering may have undone what it had answered before.
        self.suspect_strays()
        self.rest.lost()
        known = [index for index in range(len(verdicts)) if index not in answer.unsure]
        return [verdicts[index] for index in known], [answer.settled[index] for index in known]

    def _close(self, verdicts: list[Verdict], settled: list[bool], seconds: float) -> None:
        self._holdings.remove(*[verdict.claim for verdict in verdicts])
        accepted = verdicts if all(settled) else [v for v, ok in zip(verdicts, settled, strict=True) if ok]
        self._observer.settled(accepted, fenced=len(verdicts) - len(accepted), seconds=seconds)
        now = self.clock()
        self._pace.ended(len(verdicts), now, busy=self._plenty)
        for verdict in accepted:
            if verdict.kind is VerdictKind.RETRY:
                self._survey.requeued(verdict.claim, now + verdict.delay)
            elif verdict.kind is VerdictKind.RELEASED:
                self._survey.doubt()
