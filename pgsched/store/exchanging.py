"""The exchange: settle and claim as one transaction, and what to do when the server refuses it.

Conflicts are tried again quietly; a lack of lock memory halves the claim; a value that the server refuses costs the one
task that it came from. Runs in the supervisor's loop.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.events import emit
from pgsched.model import Claim, Verdict, Want
from pgsched.store.claims import claim_statement, claims_of
from pgsched.store.line import CONFLICTS, OUT_OF_LOCKS, REFUSED_DATA, Line, retried
from pgsched.store.pipeline import Encoded, encoded
from pgsched.store.redaction import one_line
from pgsched.store.verdicts import (
    parted,
    settle_completed_statement,
    settle_statement,
    settled_before_statement,
    substitutes,
)

T = TypeVar("T")
_UNLIMITED: Final = 2**31
_TOO_FEW_LOCKS: Final = "out of shared memory: raise max_locks_per_transaction on the server"


class Exchanged(NamedTuple):
    """The answer to an exchange."""

    settled: list[bool]
    """For each verdict, whether it was written; False: fenced."""
    claims: list[Claim]
    """In the order of the wants, and in due order within each."""
    skipped: int
    """Rows that were ready but whose advisory lock was refused."""
    failed: int
    """Claims that the server had no lock memory for, before the one that succeeded."""
    lease_alive: bool
    """When False, nothing was done. True is no promise where there was nothing to do."""
    refused: Sequence[Want] = ()
    """Groups of which the table does not let the next row be claimed."""
    unsure: Sequence[int] = ()
    """Positions of verdicts that may be written or not: to be sent again, as `resent`."""


class Readied(NamedTuple):
    """A claim that only needs to be sent."""

    supervisor_id: int
    wants: list[Want]
    total: int
    statement: Encoded


class Exchanger:
    """Settles and claims over one line.

    :param hinted: the line that hints come over, and what they send goes over.
    :param namespace: first key of the advisory locks.
    """

    def __init__(self, line: Line, hinted: Line, namespace: int) -> None:
        self._line = line
        self._hinted = hinted
        self._namespace = namespace
        self._lockable = _UNLIMITED

    async def exchange(
        self, supervisor_id: int, verdicts: Sequence[Verdict], wants: Sequence[Want], total: int, resent: bool
    ) -> Exchanged:
        """See ``Store.exchange``."""
        failed = 0
        while True:
            allowed = min(total, self._lockable)
            try:
                answer = await self._attempt(supervisor_id, verdicts, wants, allowed, resent)
            except OUT_OF_LOCKS:
                if allowed <= 1 or not wants:
                    raise DatabaseError(_TOO_FEW_LOCKS) from None
                failed += 1
                self._lockable = allowed // 2
            except DeadlineError:
                # For fewer the time may suffice; under a short limit of the role it never would for as many.
                if wants:
                    self._lockable = max(allowed // 2, 1)
                raise
            except REFUSED_DATA:
                if not verdicts:
                    answer = await _then(self._claim_apart(supervisor_id, wants, allowed))
                    return answer._replace(failed=failed)
                settled = await _then(self._settle(supervisor_id, verdicts, resent))
                return Exchanged(settled, [], 0, failed, lease_alive=True)
            else:
                # The lock table is shared: there may be more room by and by.
                self._lockable += self._lockable // 16 + 1 if self._lockable < _UNLIMITED else 0
                return answer._replace(failed=failed)

    def ready_claim(self, supervisor_id: int, wants: list[Want], total: int) -> Readied:
        """See ``Store.ready_claim``."""
        allowed = min(total, self._lockable)
        statement = encoded(claim_statement(supervisor_id, self._namespace, wants, allowed))
        return Readied(supervisor_id, wants, total, statement)

    def send(self, readied: Readied, then: Callable[[], None]) -> bool:
        """See ``Store.send``."""
        return self._hinted.send(readied.statement, then)

    def arrived(self) -> Exchanged | None:
        """See ``Store.arrived``."""
        rows = self._hinted.arrived()
        if rows is None:
            return None
        answer = _claimed([], rows, alive=True)
        if not answer.lease_alive:
            return None
        self._hinted.taken()
        return answer

    async def answer(self, readied: Readied) -> Exchanged:
        """See ``Store.answer``."""
        try:
            rows = await self._hinted.answer()
        except (*CONFLICTS, *REFUSED_DATA, OUT_OF_LOCKS):
            # Nothing was claimed; what is to be done about it is known there.
            return await self.exchange(readied.supervisor_id, [], readied.wants, readied.total, resent=False)
        return _claimed([], rows, alive=True)

    async def _attempt(
        self, supervisor_id: int, verdicts: Sequence[Verdict], wants: Sequence[Want], total: int, resent: bool
    ) -> Exchanged:
        parts = parted(verdicts)
        statements = [
            make(supervisor_id, [verdicts[index] for index in part])
            for make, part in zip((settle_completed_statement, settle_statement), parts, strict=True)
            if part
        ]
        settles = len(statements)
        if wants:
            statements.append(claim_statement(supervisor_id, self._namespace, wants, total))
        rows = await retried(lambda: self._line.run(*statements)) if statements else []
        alive, settled = True, [True] * len(verdicts)
        for part, [(lives, positions)] in zip(filter(None, parts), rows[:settles], strict=True):
            alive = alive and lives
            _tell(settled, part, positions)
        answer = _claimed(settled, rows[-1], alive) if wants else Exchanged(settled, [], 0, 0, alive)
        if not alive or all(settled):
            return answer
        try:
            await _then(self._settle_elsewhere(supervisor_id, verdicts, settled))
            if resent:
                await _then(self._tell_before(verdicts, settled))
        except DatabaseError:
            if not answer.claims:
                raise
            # The claims stand, and who gets an error would not know of them.
            return answer._replace(unsure=[index for index, done in enumerate(settled) if not done])
        return answer

    async def _claim_apart(self, supervisor_id: int, wants: Sequence[Want], total: int) -> Exchanged:
        """Claim from each group by itself: a row that the table refuses, by a constraint or a trigger of somebody's,
        then holds up those behind it in its group, and no others."""
        claims: list[Claim] = []
        refused: list[Want] = []
        skipped = 0
        for want in wants:
            quota = min(want.quota, total - len(claims))
            while quota:
                try:
                    answer = await self._attempt(supervisor_id, [], [want], quota, resent=False)
                except REFUSED_DATA as error:
                    quota //= 2
                    if not quota:
                        refused.append(want)
                        group = {"task_type": want.task_type, "queue": want.queue, "priority": want.priority}
                        emit("claim_refused", logging.ERROR, **group, error=one_line(error))
                    continue
                if not answer.lease_alive:
                    return answer
                claims += answer.claims
                skipped += answer.skipped
                break
        return Exchanged([], claims, skipped, 0, lease_alive=True, refused=refused)

    async def _settle_elsewhere(self, supervisor_id: int, verdicts: Sequence[Verdict], settled: list[bool]) -> None:
        """Settle those whose row was not where their claim had left it."""
        missing = [index for index, done in enumerate(settled) if not done and verdicts[index].claim.place]
        moved = [verdicts[index]._replace(claim=verdicts[index].claim._replace(place=None)) for index in missing]
        answer = await self._settle(supervisor_id, moved, resent=False)
        for index, done in zip(missing, answer, strict=True):
            settled[index] = done

    async def _tell_before(self, verdicts: Sequence[Verdict], settled: list[bool]) -> None:
        """Mark those that an earlier try has written."""
        unsure = [index for index, done in enumerate(settled) if not done]
        statement = settled_before_statement([verdicts[index] for index in unsure])
        [rows] = await retried(lambda: self._line.run(statement))
        _tell(settled, unsure, [position for (position,) in rows])

    async def _settle(self, supervisor_id: int, verdicts: Sequence[Verdict], resent: bool) -> list[bool]:
        """Settle, and halve what is refused until the verdict at fault is alone."""
        try:
            return (await self._attempt(supervisor_id, verdicts, [], 0, resent)).settled
        except REFUSED_DATA as error:
            if len(verdicts) == 1:
                return [await self._settle_refused(supervisor_id, verdicts[0], one_line(error))]
        middle = len(verdicts) // 2
        halves = (verdicts[:middle], verdicts[middle:])
        return [settled for half in halves for settled in await self._settle(supervisor_id, half, resent)]

    async def _settle_refused(self, supervisor_id: int, verdict: Verdict, reason: str) -> bool:
        refusal = reason
        for instead in substitutes(verdict, reason):
            try:
                return (await self._attempt(supervisor_id, [instead], [], 0, resent=False)).settled[0]
            except REFUSED_DATA as error:
                refusal = one_line(error)
        # The table itself refuses this row. Without this, it would hold up every other verdict for ever.
        emit("settle_refused", logging.ERROR, task_id=verdict.claim.task_id, error=refusal)
        return False


def _claimed(settled: list[bool], rows: Sequence[Any], alive: bool) -> Exchanged:
    """Read the claim's answer."""
    counts, *claimed = rows
    return Exchanged(settled, claims_of(claimed), counts[1] - len(claimed), 0, alive and counts[0] > 0)


async def _then(call: Awaitable[T]) -> T:
    """Await what follows the exchange's own transaction.

    What the server refuses here is not to be taken for a refusal of that one, whose claims stand: tried again, it would
    claim others, and nobody would know of these.
    """
    try:
        return await call
    except OUT_OF_LOCKS:
        raise DatabaseError(_TOO_FEW_LOCKS) from None
    except REFUSED_DATA as error:
        raise DatabaseError(one_line(error)) from None


def _tell(settled: list[bool], part: list[int], positions: list[int] | None) -> None:
    """Mark what was written of a part: these of its positions, which count from 1; None: all."""
    if positions is None:
        return
    for index in part:
        settled[index] = False
    for position in positions:
        settled[part[position - 1]] = True
