"""The judgement behind /healthz, condition by condition."""

import math

import pytest

from pgsched.rules.states import SupervisorState
from pgsched.supervisor.health import judge

WELL = {"lease_remaining": 9.0, "since_turn": 0.5, "turn_within": 11.0, "slots": {"idle": 1, "empty": 1}, "held": 3}


def test_all_well() -> None:
    ok, figures = judge(SupervisorState.RUNNING, **WELL)  # type: ignore[arg-type]
    assert ok
    assert figures == {
        "state": "running",
        "lease_remaining": 9.0,
        "since_last_turn": 0.5,
        "slots": {"idle": 1, "empty": 1},
        "held": 3,
    }


@pytest.mark.parametrize(
    "wrong",
    [{"lease_remaining": 0.0}, {"since_turn": 11.0}, {"since_turn": math.inf}, {"slots": {"idle": 0, "empty": 2}}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_one_thing_wrong(wrong: dict[str, object]) -> None:
    ok, _ = judge(SupervisorState.RUNNING, **{**WELL, **wrong})  # type: ignore[arg-type]
    assert not ok
