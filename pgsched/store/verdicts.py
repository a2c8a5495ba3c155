"""Verdicts as the settle's parameters. Pure.

Most batches say "completed, returned None" a thousand times: what is the same for all, and NULL, is sent once.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from pgsched.model import Failure, OutcomeKind, Verdict, VerdictKind
from pgsched.store.arrays import ascii_only, names, numbers, places, seconds, storable, texts
from pgsched.store.pipeline import Statement

_FIELDS: Final = tuple(Failure.__slots__)
_COMPLETED: Final = VerdictKind.COMPLETED


def parted(verdicts: Sequence[Verdict]) -> tuple[list[int], list[int]]:
    """The positions of those for ``settle_completed`` and of those for ``settle``, both in id order."""
    ids = [verdict.claim.task_id for verdict in verdicts]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    plain = [verdict.kind is _COMPLETED and verdict.claim.place is not None for verdict in verdicts]
    if all(plain):
        return order, []
    return [index for index in order if plain[index]], [index for index in order if not plain[index]]


def settle_completed_statement(supervisor_id: int, verdicts: Sequence[Verdict]) -> Statement:
    """The settle of the first kind."""
    claims = [verdict.claim for verdict in verdicts]
    parts = [claim.partition for claim in claims if claim.partition is not None]
    bound = bool(parts) and len(parts) == len(claims)
    return "settle_completed_in_partitions" if bound else "settle_completed", (
        str(supervisor_id),
        numbers([claim.task_id for claim in claims]),
        numbers([claim.fence for claim in claims]),
        seconds([verdict.seconds for verdict in verdicts]),
        _texts([verdict.result for verdict in verdicts]),
        places([claim.place or "" for claim in claims]),
        *([numbers(parts)] if bound else []),
    )


def settle_statement(supervisor_id: int, verdicts: Sequence[Verdict]) -> Statement:
    """The settle of the second kind, which takes the first too."""
    claims = [verdict.claim for verdict in verdicts]
    failures = [verdict.failure for verdict in verdicts]
    failed = any(failures)
    return "settle", (
        str(supervisor_id),
        numbers([claim.task_id for claim in claims]),
        numbers([claim.fence for claim in claims]),
        names([verdict.kind for verdict in verdicts]),
        seconds([verdict.seconds for verdict in verdicts]),
        seconds([verdict.delay for verdict in verdicts]) if failed else None,
        _texts([verdict.result for verdict in verdicts]),
        texts([storable(failure.error) if failure else None for failure in failures]) if failed else None,
        texts([_kept(verdict) for verdict in verdicts]) if failed else None,
    )


def settled_before_statement(verdicts: Sequence[Verdict]) -> Statement:
    """The question which of some verdicts were written before."""
    claims = [verdict.claim for verdict in verdicts]
    return "settled_before", (
        numbers([claim.task_id for claim in claims]),
        numbers([claim.fence for claim in claims]),
        names([verdict.kind for verdict in verdicts]),
    )


def substitutes(verdict: Verdict, reason: str) -> list[Verdict]:
    """What is written instead of a verdict that the server refuses: the first of them that it does not.

    In ASCII, which the encoding of every database has.
    """
    if verdict.kind is VerdictKind.COMPLETED or verdict.failure is None:
        failure = Failure(error=ascii_only(f"result not storable: {reason}"))
        return [verdict._replace(kind=VerdictKind.FAILED, result=None, outcome=OutcomeKind.RAISED, failure=failure)]
    given: dict[str, Any] = {name: getattr(verdict.failure, name) for name in _FIELDS}
    plain: dict[str, Any] = {
        name: ascii_only(value) if isinstance(value, str) else value for name, value in given.items()
    }
    bare = Failure(error=ascii_only(f"{verdict.failure.error} (and not storable as it was: {reason})"))
    failed = verdict._replace(kind=VerdictKind.FAILED, failure=bare)
    return [failed] if plain == given else [verdict._replace(failure=Failure(**plain)), failed]


def _texts(values: list[str | None]) -> str | None:
    return texts(values) if values.count(None) < len(values) else None


def _kept(verdict: Verdict) -> str | None:
    """What ``pgsched_failures`` keeps; a released claim has no failure, whatever ended its attempt."""
    failure = verdict.failure
    if failure is None or verdict.kind is VerdictKind.RELEASED:
        return None
    kept: dict[str, object] = {
        "attempt": verdict.claim.attempt,
        "fence": verdict.claim.fence,
        "task_type": verdict.claim.task_type,
        "outcome": verdict.outcome,
        "seconds": verdict.seconds,
    }
    for name in _FIELDS:
        value = getattr(failure, name)
        kept[name] = storable(value) if isinstance(value, str) else value
    return json.dumps(kept)
