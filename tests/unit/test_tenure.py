"""A lease is renewed, trusted no longer than it may be, and ends everything when it is lost."""

import asyncio
from collections.abc import Callable

import pytest

from pgsched.rules.lease import Trust
from pgsched.store.store import Renewed
from pgsched.supervisor import tenure
from pgsched.supervisor.exchange import LeaseLostError
from pgsched.supervisor.tenure import EXPIRY_INTERVAL, Expiry, Renewal, race
from tests.unit.test_supervisor import Deaf


class SlowStore:
    """Renewals that take their time, or are refused."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        self.granted = True
        self.wanted: int | None = None

    async def renew(self, supervisor_id: int, lease: float) -> Renewed | None:
        self._meanwhile()
        return Renewed(self.wanted) if self.granted else None


class Clock:
    """Is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(tenure, "lease_clock", lambda: self.now)

    def move(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Listening(Deaf):
    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, name: str, level: int, **fields: object) -> None:
        self.events.append(name)


def renewal(store: SlowStore, trust: Trust, observer: Deaf | None = None) -> Renewal:
    return Renewal(store, trust, observer or Deaf(), supervisor_id=7, lease=15.0)  # type: ignore[arg-type]


async def test_a_renewal_counts_from_when_it_was_begun(clock: Clock) -> None:
    trust = Trust(15.0, clock.now)
    clock.move(5.0)
    pause = await renewal(SlowStore(lambda: clock.move(4.0)), trust).turn()
    assert trust.expires_at == 105.0 + 13.5
    assert pause == 1.0, "a third of the lease after it was begun"


async def test_one_that_took_longer_than_a_third_of_the_lease_is_followed_at_once(clock: Clock) -> None:
    assert await renewal(SlowStore(lambda: clock.move(6.0)), Trust(15.0, clock.now)).turn() == 0.0


@pytest.mark.parametrize(("seconds", "told"), [(4.9, []), (5.0, ["renewal_late"])])
async def test_one_that_is_confirmed_when_the_next_is_due_is_late(
    clock: Clock, seconds: float, told: list[str]
) -> None:
    trust, observer = Trust(15.0, clock.now), Listening()
    clock.move(5.0)
    await renewal(SlowStore(lambda: clock.move(seconds)), trust, observer).turn()
    assert observer.events == told
    clock.move(5.0 - seconds)
    await renewal(SlowStore(lambda: clock.move(0.1)), trust, observer).turn()
    assert observer.events == told, "it was counted from the renewal before"


async def test_one_that_is_refused_ends_the_tenure(clock: Clock) -> None:
    trust = Trust(15.0, clock.now)
    store = SlowStore(lambda: clock.move(1.0))
    store.granted = False
    with pytest.raises(LeaseLostError):
        await renewal(store, trust).turn()
    assert trust.expires_at == 113.5


async def test_trust_ends_the_tenure_by_itself(clock: Clock) -> None:
    expiry = Expiry(Trust(15.0, clock.now))
    assert await expiry.turn() == EXPIRY_INTERVAL, "a host may be suspended, and sleeps do not count that"
    clock.move(13.25)
    assert await expiry.turn() == 0.25
    clock.move(0.25)
    with pytest.raises(LeaseLostError):
        await expiry.turn()


async def test_the_first_to_end_ends_the_others() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def lost() -> None:
        raise LeaseLostError

    async with asyncio.timeout(5):
        with pytest.raises(LeaseLostError):
            await race(forever(), lost(), forever())
    assert ended == ["cancelled", "cancelled"]
