"""The state tables, and that the documentation says the same."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from pgsched.model import Status
from pgsched.rules.states import (
    SLOT,
    SUPERVISOR,
    TASK,
    InvalidTransition,
    SlotState,
    SupervisorState,
    advance,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "states.md"
TABLES = {"Task": TASK, "Slot": SLOT, "Supervisor": SUPERVISOR}
ROW = re.compile(r"^\| (\w+) \| (\w+) \| .+ \|$", re.MULTILINE)


def documented(heading: str) -> set[tuple[str, str]]:
    text = DOCUMENT.read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {(row[1], row[2]) for row in ROW.finditer(section)} - {("from", "to")}


@pytest.mark.parametrize("heading", TABLES)
def test_documentation_has_the_same_ways(heading: str) -> None:
    table: Mapping[StrEnum, frozenset[StrEnum]] = TABLES[heading]  # type: ignore[assignment]
    assert documented(heading) == {(str(here), str(there)) for here in table for there in table[here]}


@pytest.mark.parametrize(("states", "table"), [(Status, TASK), (SlotState, SLOT), (SupervisorState, SUPERVISOR)])
def test_each_state_has_a_row(states: type[StrEnum], table: Mapping[StrEnum, frozenset[StrEnum]]) -> None:
    assert set(table) == set(states)


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [(TASK, Status.QUEUED, Status.COMPLETED), (SUPERVISOR, SupervisorState.STARTING, SupervisorState.STOPPED)],
)
def test_every_state_can_be_reached_and_the_end_is_final(
    table: Mapping[StrEnum, frozenset[StrEnum]], first: StrEnum, last: StrEnum
) -> None:
    reached, new = set[StrEnum](), {first}
    while new:
        reached |= new
        new = {there for here in new for there in table[here]} - reached
    assert reached == set(table)
    assert not table[last]


def test_a_slot_can_be_emptied_from_everywhere() -> None:
    assert all(SlotState.EMPTY in SLOT[state] for state in SlotState if state is not SlotState.EMPTY)


def test_advance_goes_only_where_the_table_leads() -> None:
    assert advance(SLOT, SlotState.IDLE, SlotState.BUSY) is SlotState.BUSY
    with pytest.raises(InvalidTransition, match="SlotState: no way from empty to busy"):
        advance(SLOT, SlotState.EMPTY, SlotState.BUSY)
