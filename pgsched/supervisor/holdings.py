"""What this supervisor holds: every claim from the moment it is taken until its settle is answered.

The one place that answers "is this claim still mine". A lapse empties it, and whatever is reported
about a claim afterwards finds nothing here and changes nothing.
"""

from collections.abc import Iterable

from pgsched.model import Claim


class Holdings:
    """Claims by task id; the fence tells a claim from an earlier one of the same task."""

    def __init__(self) -> None:
        self._claims: dict[int, Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, claim: Claim) -> bool:
        # The fence alone does not do: who empties the table with RESTART IDENTITY has both numbers begin again.
        return self._claims.get(claim.task_id) == claim

    def add(self, claims: Iterable[Claim]) -> list[Claim]:
        """Take claims into the books; return the earlier ones of the same tasks, which are closed by that."""
        replaced = []
        for claim in claims:
            former = self._claims.get(claim.task_id)
            if former is not None:
                replaced.append(former)
            self._claims[claim.task_id] = claim
        return replaced

    def remove(self, *claims: Claim) -> None:
        """Close claims; those that are not held (any more) are ignored."""
        for claim in claims:
            if claim in self:
                del self._claims[claim.task_id]

    def ids(self) -> list[int]:
        """The ids of all tasks held."""
        return list(self._claims)

    def claims(self) -> list[Claim]:
        """All claims held."""
        return list(self._claims.values())

    def clear(self) -> None:
        """Forget everything: the lease is gone."""
        self._claims.clear()
