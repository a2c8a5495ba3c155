"""What ``/healthz`` says: is this supervisor doing its work. Pure."""

import math
from collections.abc import Mapping

from pgsched.rules.states import SlotState, SupervisorState


def judge(
    state: SupervisorState,
    *,
    lease_remaining: float,
    since_turn: float,
    turn_within: float,
    slots: Mapping[str, int],
    held: int,
) -> tuple[bool, dict[str, object]]:
    """Whether the lease is alive, the claim loop turns and at least one slot has a worker; and the figures.

    :param since_turn: seconds since the exchange's last turn; infinite before the first one.
    :param turn_within: seconds in which the next turn must have come, whatever happens.
    """
    figures: dict[str, object] = {
        "state": str(state),
        "lease_remaining": round(max(lease_remaining, 0.0), 3),
        "since_last_turn": None if math.isinf(since_turn) else round(since_turn, 3),
        "slots": dict(slots),
        "held": held,
    }
    alive = sum(slots.values()) - slots.get(SlotState.EMPTY, 0)
    return lease_remaining > 0 and since_turn < turn_within and alive > 0, figures
