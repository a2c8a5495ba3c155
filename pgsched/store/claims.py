"""Wants as the claim's parameters, and rows as claims. Pure."""

from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, Final

from pgsched.model import Claim, Want
from pgsched.store.arrays import names, numbers, texts
from pgsched.store.pipeline import Statement

_EVERYWHERE: Final = ("-infinity", -(2**63))
"""The floor of a want that has none."""


def claim_statement(supervisor_id: int, namespace: int, wants: Sequence[Want], total: int) -> Statement:
    """The claim of up to `total` rows.

    :param namespace: first key of the advisory locks.
    """
    floors = [_EVERYWHERE if want.floor_run_at is None else (want.floor_run_at, want.floor_id) for want in wants]
    bound = [want.partition for want in wants if want.partition is not None]
    return "claim_in_partitions" if bound else "claim", (
        str(supervisor_id),
        str(namespace),
        str(total),
        texts([want.task_type for want in wants]),
        texts([want.queue for want in wants]),
        numbers([want.priority for want in wants]),
        numbers([want.quota for want in wants]),
        texts([run_at for run_at, _ in floors]),
        numbers([floor_id for _, floor_id in floors]),
        names(["true" if want.passing else "false" for want in wants]),
        *([numbers(bound)] if bound else []),
    )


def claims_of(rows: Iterable[Any]) -> list[Claim]:
    """Rows of ``claim``, ``reap`` or ``reap_ownerless``, whose columns are the fields of a claim."""
    return list(starmap(Claim, rows))
