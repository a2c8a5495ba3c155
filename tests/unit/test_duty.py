"""How long a duty waits after a turn that failed, by a clock that is moved by hand."""

from typing import Any

import pytest

from pgsched.errors import DatabaseError, PoolError
from pgsched.supervisor.duty import CALM, Duty
from pgsched.supervisor.exchange import LeaseLostError
from tests.unit.test_supervisor import Deaf


class Failing:
    """A duty whose turns fail after a while."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lasting = 0.0
        observer: Any = Deaf()
        self.duty = Duty("listen", self.turn, observer, clock=lambda: self.now)

    async def turn(self) -> float:
        self.now += self.lasting
        raise DatabaseError("the listening connection is lost")

    async def fails(self, lasting: float) -> float:
        """Seconds that the duty waits after a turn that lasted so long."""
        self.lasting = lasting
        pause, well = await self.duty._try()
        assert not well
        return pause


async def test_it_waits_longer_each_time() -> None:
    failing = Failing()
    pauses = [await failing.fails(0.01) for _ in range(8)]
    assert pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5.0


@pytest.mark.parametrize(("lasting", "longest"), [(CALM - 1.0, 5.0), (CALM + 1.0, 0.1)])
async def test_one_that_was_well_for_a_while_begins_anew(lasting: float, longest: float) -> None:
    """A connection that is lost now and then is opened again at once, however often it was lost before."""
    failing = Failing()
    for _ in range(8):
        await failing.fails(0.01)
    assert longest / 2 <= await failing.fails(lasting) <= longest


class Turns:
    """A duty whose turns end as they are told to."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.slept: list[float] = []
        observer: Any = Deaf()
        self.duty = Duty("reap", self.turn, observer, sleep=self.sleep)

    async def turn(self) -> float:
        end = self.ends.pop(0) if self.ends else LeaseLostError()
        if end is not None:
            raise end
        return 7.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize("end", [LeaseLostError(), PoolError("workers end as fast as they are started")])
async def test_what_ends_more_than_a_duty_is_passed_on(end: Exception) -> None:
    turns = Turns(None, end)
    with pytest.raises(type(end)):
        await turns.duty.run()
    assert turns.slept == [7.0]


@pytest.mark.parametrize("end", [DatabaseError("away"), RuntimeError("a bug")])
async def test_after_anything_else_it_goes_on_when_it_has_waited_whatever_wakes_it(end: Exception) -> None:
    turns = Turns(end, None)
    with pytest.raises(LeaseLostError):
        await turns.duty.run()
    assert turns.slept == [7.0], "it waits by itself, and not as one that can be woken"
