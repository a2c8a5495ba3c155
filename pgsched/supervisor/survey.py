"""What the supervisor knows of the queued rows: which groups there are, when each is due, where to claim on.

Filled by ``discover``, moved forward by every claim. It only remembers; the exchange asks the database, and
``rules/demand`` decides what to take.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pgsched.model import Claim, Group, Want

FULL_SCAN, LONGEST_WAIT = 1.0, 5.0
"""Seconds after which a full scan comes round in any case: rows can appear below a floor (late commits,
back-dated tasks), and without it they would be lost from sight. Where a scan is slow, because an old snapshot keeps
dead entries, up to the second of them."""
THRIFT, FULL_THRIFT = 20, 50
"""A scan is not repeated more often than this many times its own duration, in the long run: one that there is a reason
for, and one that there is none for but the time."""
BURST = 4
"""Scans that may follow one another at once after a time without any."""
FUTILE = 0.001
"""Seconds that a scan is put off by when what the one before had found could not be claimed; doubled each time, up to
:data:`FULL_SCAN`. Somebody may keep a due row locked for minutes."""
REFUSED_FOR = 5.0
"""Seconds in which a group is left alone of which the table does not let the next row be claimed."""
LONGEST_BLIND = 60.0
"""Seconds that a scan is put off by at most when the ones before took too long to bring anything; the first time
:data:`LONGEST_WAIT`, then twice as long each time."""
REMEMBERED = 64
"""Groups that have run empty and are still tried on a wake-up, before any scan."""

Key = tuple[str, str, int, int | None]


@dataclass(slots=True)
class _Known:
    group: Group
    due_at: float
    """Monotonic; infinite while nothing is known to be queued."""
    floor_run_at: str
    floor_id: int
    passing: bool = False
    """Whether the floor is our own last claim's: after a scan nothing may be passed over, or it might be for ever."""


class Survey:
    """Groups by (task type, queue, priority, partition), in the order in which they were last found."""

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}
        self._refused: dict[Key, float] = {}
        """Until when, monotonic, a group is left alone."""
        self._scanned_at = -math.inf
        self._thrifty_at = -math.inf
        self._space = 0.0
        self._futile = 0
        """Claims in a row that brought nothing, with no hint between them."""
        self._interval = FULL_SCAN
        self._late = 0
        """Full scans in a row that took too long."""
        self._tried = False
        self._incomplete = True
        self._doubted = False
        """Whether something was heard that the scan under way may have come too early for."""
        self._hinted = False

    def scanning(self) -> None:
        """A full scan begins."""
        self._doubted = False

    def found(self, groups: Iterable[Group], now: float, seconds: float) -> None:
        """Take in a full scan's answer; groups that it did not name are empty, yet remembered."""
        for known in self._known.values():
            known.due_at = math.inf
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        for group in groups:
            key = _key(group)
            # To the end, whether it was known or not: those that were found long ago are forgotten first.
            self._known.pop(key, None)
            due_at = max(now + group.due_in, self._refused.get(key, -math.inf))
            self._known[key] = _Known(group, due_at, group.head_run_at, group.head_id)
        for key in [key for key, known in self._known.items() if known.due_at == math.inf][:-REMEMBERED]:
            del self._known[key]
        self._scanned_at = now
        futile = min(FUTILE * 2.0 ** min(self._futile, 30), FULL_SCAN) if self._futile else 0.0
        self._space = min(max(THRIFT * seconds, futile), LONGEST_WAIT)
        self._interval = min(max(FULL_THRIFT * seconds, FULL_SCAN), LONGEST_WAIT)
        self._thrifty_at = max(self._thrifty_at, now - (BURST - 1) * self._space) + self._space
        self._tried = False
        self._incomplete, self._doubted = self._doubted, False
        self._late = 0

    def late(self, now: float) -> None:
        """A full scan took too long and said nothing: until one does, remembered groups are tried by their floors."""
        self._space = self._interval = min(LONGEST_WAIT * 2.0 ** min(self._late, 30), LONGEST_BLIND)
        self._late += 1
        self._scanned_at = now
        self._thrifty_at = now + self._space
        self._incomplete = True
        self._revive(now)

    @property
    def blind(self) -> bool:
        """Whether scans take too long."""
        return self._late > 0

    def wants_scan(self, now: float) -> bool:
        """Whether a full scan should come before the next claim.

        Right after a hint it should not: the remembered groups most likely have the new rows, and trying them
        saves a round trip. The scan then follows that claim.
        """
        if self._hinted and self.due(now):
            self._hinted = False
            if not self._tried:
                self._tried = True
                return False
        return self.scan_in(now) <= 0

    def scan_in(self, now: float) -> float:
        """Seconds until the next full scan is due."""
        full = self._scanned_at + self._interval - now
        return min(full, self._thrifty_at - now) if self._incomplete else full

    def overdue(self, now: float) -> bool:
        """Whether a full scan is due whatever has been found meanwhile: there may be rows that go first."""
        return now >= self._scanned_at + self._interval

    def rescan_in(self, now: float) -> float:
        """Seconds until one more than needed would not be wasteful."""
        return self._scanned_at + self._space - now

    @property
    def incomplete(self) -> bool:
        """Whether there may be due rows that the survey does not know of."""
        return self._incomplete

    def due(self, now: float) -> list[Group]:
        """The groups that have a due row, as far as is known, with ``due_in`` as of now."""
        return [
            known.group._replace(due_in=known.due_at - now) for known in self._known.values() if known.due_at <= now
        ]

    def remembered(self, now: float) -> list[Group]:
        """Every group as if it had a row that is due now, but those that are left alone."""
        return [
            known.group._replace(due_in=0.0)
            for key, known in self._known.items()
            if self._refused.get(key, -math.inf) <= now
        ]

    def floored(self, wants: Sequence[Want]) -> list[Want]:
        """The same wants, each starting where its group's last claim ended."""
        floored = []
        for want in wants:
            known = self._known[_key(want)]
            floored.append(
                want._replace(floor_run_at=known.floor_run_at, floor_id=known.floor_id, passing=known.passing)
            )
        return floored

    def claimed(self, wants: Sequence[Want], claims: Sequence[Claim], total: int) -> None:
        """Move the floors on; a group that gave less than was wanted counts as empty until it is found again."""
        last: dict[Key, Claim] = {}
        counts: dict[Key, int] = {}
        for claim in claims:
            key = _key(claim)
            last[key] = claim
            counts[key] = counts.get(key, 0) + 1
        cut_short = len(claims) >= total
        self._futile = 0 if claims else self._futile + 1
        for want in wants:
            key = _key(want)
            known = self._known.get(key)
            if known is None:
                continue
            if key in last:
                known.floor_run_at, known.floor_id, known.passing = last[key].run_at, last[key].task_id, True
            if counts.get(key, 0) < want.quota and not cut_short:
                known.due_at = math.inf
                self._incomplete = True

    def refused(self, wants: Iterable[Want], now: float) -> None:
        """These could not be claimed from, whatever else could."""
        self._refused.update((_key(want), now + REFUSED_FOR) for want in wants)

    def woken(self, now: float) -> None:
        """A hint that rows were queued: every remembered group may have some, and so may unknown ones.

        While there is other work, the next scan finds out which; trying groups that were just found empty, at every
        hint, would put that work off.
        """
        self.doubt()
        if self._futile:
            self._futile = 0
            if not self.blind:
                self._thrifty_at = min(self._thrifty_at, now)
        if self.next_due(now) > 0:
            self._revive(now)
            self._hinted = True

    def _revive(self, now: float) -> None:
        for key, known in self._known.items():
            known.due_at = self._refused.get(key, now)

    def requeued(self, claim: Claim, due_at: float) -> None:
        """A claim went back into its group, above the floor, and is due again then: no scan needs to find it."""
        known = self._known.get(_key(claim))
        if known is None:
            self.doubt()
        else:
            known.due_at = min(known.due_at, due_at)

    def keep(self, task_types: Collection[str]) -> None:
        """Forget the groups of all other types; those of types that are new here are yet to be found."""
        self._known = {key: known for key, known in self._known.items() if known.group.task_type in task_types}
        self._incomplete = True

    def doubt(self) -> None:
        """Rows may have appeared that no claim would find: below a floor, or in a new group."""
        self._incomplete = self._doubted = True

    def next_due(self, now: float) -> float:
        """Seconds until the next known row is due; infinite when none is known."""
        return min((known.due_at - now for known in self._known.values()), default=math.inf)


def _key(item: Group | Want | Claim) -> Key:
    return item.task_type, item.queue, item.priority, item.partition
