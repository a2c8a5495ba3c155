"""The protocol, as the statements have it: it keeps its promises, and each broken twin breaks one of them.

See README.md beside this file. ``PGSCHED_TEST_SEED`` repeats the histories.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import SEED
from tests.model.database import Database
from tests.model.machine import SLOTS, Protocol, part_of
from tests.model.oracle import Broken
from tests.model.twins import HEALTHY, TWINS, Twin

# Half a minute by itself; the more beside others, the slower their processor.
pytestmark = pytest.mark.timeout(600)

HISTORIES = 300
STEPS = 60
SEARCH = settings(
    max_examples=HISTORIES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def protocol(dsn: str, twin: Twin) -> Iterator[type[Protocol]]:
    """A machine of the twin's."""
    database = Database(dsn, SLOTS, twin.load)
    try:
        members = {"database": database, "decisions": twin.rules, **part_of(Protocol, twin.steps)}
        yield seed(SEED)(type("Protocol", (Protocol,), members))
    finally:
        database.close()


def test_the_protocol_keeps_its_promises(dsn: str) -> None:
    with protocol(dsn, HEALTHY) as machine:
        run_state_machine_as_test(machine, settings=settings(SEARCH))


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name.replace(" ", "-"))
def test_a_broken_twin_is_found_out(dsn: str, twin: Twin) -> None:
    for name in twin.changes:
        assert twin.load(name) != HEALTHY.load(name)
    # What it was that broke it is said by the promise; how to break it in fewer steps is of no interest.
    search = settings(SEARCH, max_examples=10 * HISTORIES, phases=[Phase.generate])
    with protocol(dsn, twin) as machine, pytest.raises(Broken) as found:
        run_state_machine_as_test(machine, settings=search)
    assert str(found.value).partition(":")[0] in twin.broken.split("|")
