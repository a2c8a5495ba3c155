"""What a supervisor asks of the database, one transaction each, with the oracle as a witness.

A call is made of two halves, because they fail apart: the server's half runs the statements and tells the oracle what
they amounted to, now or when the transaction commits; the client's half is what the supervisor makes of the answer, and
is missing where the answer is lost.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg

from pgsched.model import Claim, Verdict, VerdictKind, Want
from pgsched.store.arrays import numbers, texts
from pgsched.store.claims import claim_statement, claims_of
from pgsched.store.verdicts import parted, settle_completed_statement, settle_statement, settled_before_statement
from tests.model.database import Database, Statement
from tests.model.oracle import Oracle, hold
from tests.model.process import LEASE, Process

Line = psycopg.Connection[Any]
WANT = Want("a", "default", 0, 100)
HOSTS = ("one", "two")


class Exchanged(NamedTuple):
    """The answer to a settle and claim."""

    alive: bool
    settled: list[bool]
    claims: list[Claim]


Half = Callable[[Line], Any]
"""The server's half of a call: runs on an open transaction, and returns the answer and what its commit amounts to."""
Effect = Callable[[], None]


class Calls:
    """All calls there are."""

    def __init__(self, database: Database, oracle: Oracle) -> None:
        self._database = database
        self._oracle = oracle

    def commit(self, line: Line, half: Half) -> Any:
        """Do it all at once; return the answer."""
        answer, effect = half(line)
        line.commit()
        effect()
        return answer

    def exchange(self, supervisor: int, verdicts: Sequence[Verdict], total: int) -> Half:
        """Settle and claim up to so many, as one transaction."""

        def half(line: Line) -> tuple[Exchanged, Effect]:
            oracle, began = self._oracle, self._oracle.now
            parts = [part for part in parted(verdicts) if part]
            made = [self._settle(supervisor, verdicts, part) for part in parts]
            if total:
                made.append(claim_statement(supervisor, 1337, [WANT], total))
            lives = oracle.alive(supervisor)
            rows = self._database.begin(line, *made)
            settled, alive = [False] * len(verdicts), True
            for part, [(alive_there, positions)] in zip(parts, rows, strict=False):
                alive = alive and alive_there
                for position in range(1, len(part) + 1) if positions is None else positions:
                    settled[part[position - 1]] = True
            claims: list[Claim] = []
            if total:
                counts, *claimed = rows[-1]
                alive, claims = alive and counts[0] > 0, claims_of(claimed)
            # A claim that finds nothing does not look at the lease.
            looked = bool(claims or verdicts or not alive)
            hold(alive == lives or not looked, "the database's clock judges a lease", supervisor, alive)
            for verdict, done in zip(verdicts, settled, strict=True):
                allowed = oracle.may_settle(supervisor, verdict.claim)
                hold(not done or lives, "a lost lease settles nothing", supervisor, verdict)
                hold(not done or allowed, "only the holder settles", supervisor, verdict)
                hold(done or not allowed or verdict.claim.place is not None, "the holder settles", supervisor, verdict)

            def effect() -> None:
                for verdict, done in zip(verdicts, settled, strict=True):
                    if done:
                        oracle.settled(verdict, began)
                for claim in claims:
                    oracle.claimed(supervisor, claim, began)

            return Exchanged(alive, settled, claims), effect

        return half

    def settled_before(self, line: Line, verdicts: Sequence[Verdict]) -> list[bool]:
        """Which of these an earlier try has written."""
        [rows] = self._database.run(line, settled_before_statement(verdicts))
        found = {position for (position,) in rows}
        answer = [position in found for position in range(1, len(verdicts) + 1)]
        for verdict, before in zip(verdicts, answer, strict=True):
            if before and verdict.kind is not VerdictKind.RELEASED:
                written = self._oracle.tasks[verdict.claim.task_id].settled.get(verdict.claim.fence)
                hold(written is verdict.kind, "settled before means written", verdict, written)
        return answer

    def renew(self, supervisor: int) -> Half:
        def half(line: Line) -> tuple[bool, Effect]:
            [rows] = self._database.begin(line, ("renew", (str(supervisor), str(LEASE), None)))
            return bool(rows), lambda: self._oracle.renewed(supervisor, bool(rows), LEASE)

        return half

    def reap(self, supervisor: int, undisturbed: bool) -> Half:
        """Take over what nobody holds.

        :param undisturbed: no other transaction is open, so nothing may be left.
        """

        def half(line: Line) -> tuple[list[Claim], Effect]:
            oracle, began = self._oracle, self._oracle.now
            expected = oracle.orphans() if undisturbed and oracle.alive(supervisor) else set()
            mine = (str(supervisor), "100")
            dead, ownerless, _ = self._database.begin(line, ("reap", mine), ("reap_ownerless", mine), ("bury", ()))
            claims = _in_order(claims_of(dead + ownerless))
            hold(expected <= {claim[0] for claim in claims}, "a reap finds what is lost", expected, claims)

            def effect() -> None:
                for claim in claims:
                    oracle.reaped(supervisor, claim, began)

            return claims, effect

        return half

    def register(self, line: Line, process: Process) -> None:
        place = (HOSTS[process.host], HOSTS[process.host], "1", str(process.pid), str(process.ticks))
        serves = ("2", "{}", texts(["a"]), "", str(LEASE), "{}")
        [[(process.id,)]] = self._database.run(line, ("register", place + serves))
        self._oracle.leases[process.id] = self._oracle.now + LEASE

    def confirm(self, line: Line, process: Process, claims: Sequence[Claim]) -> list[Claim]:
        """Those that are not ours any more."""
        [rows] = self._database.run(line, ("confirm", (str(process.id), *_columns([claim[:2] for claim in claims]))))
        for claim in claims:
            self._oracle.confirmed(process.id, claim, (claim.task_id, claim.fence) in rows)
        return [claim for claim in claims if (claim.task_id, claim.fence) not in rows]

    def strays(self, line: Line, process: Process) -> list[Claim]:
        """Give back what is ours without our knowing; return what of it was reaped."""
        [rows] = self._database.run(line, ("strays", (str(process.id),)))
        known = set(process.holdings.ids())
        strays = [row for row in rows if row[0] not in known]
        if claimed := sorted(row[:2] for row in strays if not row[-1]):
            [given] = self._database.run(line, ("release_strays", (str(process.id), *_columns(claimed))))
            for (task_id,) in given:
                self._oracle.released(process.id, task_id)
        return _in_order(claims_of(row[:-1] for row in strays if row[-1]))

    def leave(self, line: Line, process: Process) -> None:
        self._database.run(line, ("deregister", (str(process.id), None)))
        self._oracle.ended(process.id)

    def take_over(self, line: Line, process: Process, living: Sequence[Process]) -> None:
        """End the leases of those whose process is gone from this host."""
        present = {(other.pid, other.ticks) for other in living if other.host == process.host}
        [found] = self._database.run(line, ("neighbours", (HOSTS[process.host], "1")))
        gone = [supervisor for supervisor, *who in found if supervisor != process.id and tuple(who) not in present]
        for supervisor in gone:
            hold(supervisor not in {other.id for other in living}, "only the dead are expired", supervisor)
        if gone:
            self._database.run(line, ("expire", (numbers(gone),)))
            for supervisor in gone:
                self._oracle.ended(supervisor)

    def _settle(self, supervisor: int, verdicts: Sequence[Verdict], part: Sequence[int]) -> Statement:
        chosen = [verdicts[index] for index in part]
        plain = all(verdict.kind is VerdictKind.COMPLETED and verdict.claim.place for verdict in chosen)
        return (settle_completed_statement if plain else settle_statement)(supervisor, chosen)


def _in_order(claims: Iterable[Claim]) -> list[Claim]:
    """Where the statement promises no order: what comes of them must not depend on where rows lie."""
    return sorted(claims, key=lambda claim: claim.task_id)


def _columns(claims: Sequence[tuple[Any, ...]]) -> tuple[str, str]:
    return numbers([task_id for task_id, *_ in claims]), numbers([fence for _, fence in claims])
