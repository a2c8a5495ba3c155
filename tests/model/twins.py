"""Twins of the protocol, each broken in one place: a guard is taken out of a statement's text, or a rule is another.

The statements are pgsched's own, read when the twin is made and changed by replacement; where the text is not found any
more, the twin cannot be made.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pgsched.model import Claim, Outcome, OutcomeKind, Retry, Verdict
from pgsched.rules.lease import Trust
from pgsched.rules.verdict import decide
from pgsched.store.sql import load
from tests.model.process import Rules


class Twin(NamedTuple):
    """One way to be wrong."""

    name: str
    broken: str
    """How the promise is called that does not hold then; several are separated by a bar."""
    changes: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """By statement: what is replaced, wherever it stands, and by what."""
    rules: Rules = Rules()
    steps: str = ""
    """The rules of the machine that it takes, so that it is found out soon; empty: all."""

    def load(self, name: str) -> bytes:
        """The statement's text.

        :raises ValueError: there is nothing to replace.
        """
        text = load(name)
        if name in self.changes:
            before, after = (part.encode() for part in self.changes[name])
            if before not in text:
                raise ValueError(f"{self.name}: {name}.sql has no {before.decode()!r}")
            text = text.replace(before, after)
        return text


class LongTrust(Trust):
    """Trusts a lease for longer than it was given."""

    def __init__(self, lease: float, started: float | None = None) -> None:
        super().__init__(lease, started)
        self._span = lease * 1.3


def lost_for_nothing(claim: Claim, outcome: Outcome, retry: Retry, random: Callable[[], float]) -> Verdict | None:
    """Gives back what was reaped, as if it had never begun."""
    if outcome.kind is OutcomeKind.LOST:
        outcome = Outcome(OutcomeKind.INTERRUPTED, 0.0)
    return decide(claim, outcome, retry, random)


def once_too_often(claim: Claim, outcome: Outcome, retry: Retry, random: Callable[[], float]) -> Verdict | None:
    """Grants one retry more."""
    verdict = decide(claim._replace(max_retries=claim.max_retries + 1), outcome, retry, random)
    return verdict and verdict._replace(claim=claim)


_LEASE: Final = (" AND lease_until > clock_timestamp() FOR KEY SHARE", " FOR KEY SHARE")
_FENCE: Final = ("task.fence = verdict.fence", "true")
_RAISED: Final = ("fence = task.fence + 1", "fence = task.fence")
_WAIT: Final = (" SKIP LOCKED", "")
_FIVE_MINUTES: Final = ("< now() - interval '5 minutes'", "<= now()")

HEALTHY: Final = Twin("healthy", "")
TWINS: Final = (
    Twin(
        "settle compares no fence",
        "only the holder settles|one settle for each fence",
        {"settle": _FENCE, "settle_completed": _FENCE},
        steps="enqueue start exchange settle work deliver",
    ),
    Twin(
        "settle looks at no lease",
        "the database's clock judges a lease|a lost lease settles nothing",
        {"settle": _LEASE, "settle_completed": _LEASE},
        steps="enqueue start exchange work die take_over deliver",
    ),
    Twin(
        "claim looks at no lease",
        "the database's clock judges a lease",
        {"claim": _LEASE},
        steps="enqueue start exchange wait lapse deliver",
    ),
    Twin(
        "claim raises no fence",
        "every change of hands raises the fence",
        {"claim": _RAISED},
        steps="enqueue start exchange",
    ),
    Twin(
        "claim waits",
        "claims and reaps wait for nobody",
        {"claim": _WAIT},
        steps="enqueue start exchange land",
    ),
    Twin(
        "reap looks at no lease",
        "a reap takes what nobody alive holds|claims and reaps wait for nobody",
        {"reap": ("supervisor.lease_until <= clock_timestamp() AND EXISTS", "EXISTS")},
        steps="enqueue start exchange reap",
    ),
    Twin(
        "reap raises no fence",
        "every change of hands raises the fence",
        {"reap": _RAISED},
        steps="enqueue start exchange crash wait reap",
    ),
    Twin(
        "reap does not look at the reaper's lease",
        "a lost lease takes nothing",
        {"reap": _LEASE},
        steps="enqueue start exchange wait lapse reap deliver",
    ),
    Twin(
        "reap waits",
        "claims and reaps wait for nobody",
        {"reap": _WAIT},
        steps="enqueue start exchange wait lapse reap land",
    ),
    Twin(
        "strangers get no five minutes",
        "a reap takes what nobody alive holds",
        {"reap_ownerless": _FIVE_MINUTES},
        steps="enqueue start strange_claim reap",
    ),
    Twin(
        "renewal revives a lease",
        "a lease that has run out is final",
        {"renew": (" AND lease_until > clock_timestamp()", "")},
        steps="start renew wait deliver",
    ),
    Twin(
        "cancel raises no fence",
        "rows change by what was answered",
        {"cancel": ("fence = fence + 1", "fence = fence")},
        steps="enqueue start cancel",
    ),
    Twin(
        "release raises no fence",
        # The latter where the same exchange claims it again.
        "rows change by what was answered|every change of hands raises the fence",
        {"settle": (" + (verdict.kind = 'released')::integer,", ",")},
        steps="enqueue start exchange work settle",
    ),
    Twin(
        "takeover looks at no host",
        "only the dead are expired",
        {"neighbours": ("boot_id = $1 AND", "$1 = $1 AND")},
        steps="start take_over",
    ),
    Twin(
        "trust outlasts the lease",
        "trust ends before the lease does",
        rules=Rules(trust=LongTrust),
        steps="start renew wait",
    ),
    Twin(
        "trust begins with the reply",
        "trust ends before the lease does",
        rules=Rules(late_trust=True),
        steps="start renew wait",
    ),
    Twin(
        "a reap costs nothing",
        "what was begun is not given back for nothing",
        rules=Rules(decide=lost_for_nothing),
        steps="enqueue start exchange begin crash wait reap settle",
    ),
    Twin(
        "one retry too many",
        "max_retries bounds the retries|max_retries + 1 executions",
        rules=Rules(decide=once_too_often),
        steps="enqueue start exchange work settle wait",
    ),
)
