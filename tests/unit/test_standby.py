"""A hint sends the claim that stands by, and its answer starts the task; whatever is amiss goes the long way."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from pgsched.errors import DatabaseError
from pgsched.supervisor.exchange import LeaseLostError
from tests.unit.test_exchange import Bench, claim, verdict

HINTER = 1


class Sleeper(Bench):
    """One that has looked everywhere, knows a group, and waits for a hint."""

    def __init__(self, runner: asyncio.Runner) -> None:
        super().__init__(runner, listens=True)
        self.store.ready = [claim(1)]
        self.turn()
        self.backlog.take_all()
        self.holdings.clear()
        for _ in range(2):
            # It asks for hints, and then looks once more for what came before it had asked.
            self.now += 1.0
            self.turn()
        assert self.store.listening is True
        self.store.calls.clear()

    def hint(self, *rows: int, before: Callable[[], None] = lambda: None) -> None:
        """Rows are queued, and we are told while we sleep."""
        self.store.ready = [claim(number) for number in rows]

        async def asleep() -> None:
            sleep = asyncio.create_task(self.exchange.sleep(10.0))
            await asyncio.sleep(0)
            before()
            self.exchange.notified(HINTER)
            sleep.cancel()
            await asyncio.gather(sleep, return_exceptions=True)

        self.run(asleep())

    def reply(self) -> None:
        """The answer comes."""

        async def replied() -> None:
            self.store.reply()

        self.run(replied())

    def backlogged(self) -> list[int]:
        return [one.task_id for one in self.backlog.claims()]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    with asyncio.Runner() as runner:
        yield Sleeper(runner)


def test_a_hint_sends_what_stands_by_and_the_answer_feeds_the_slots_without_a_turn(sleeper: Sleeper) -> None:
    fed: list[list[int]] = []
    sleeper.feed = lambda: fed.append(sleeper.backlogged())
    sleeper.hint(5)
    assert [(each.supervisor_id, each.total) for each in sleeper.store.sent] == [(7, 2)]
    assert fed == []
    sleeper.reply()
    assert fed == [[5]]
    assert sleeper.holdings.ids() == [5]
    assert sleeper.store.calls == [], "nobody had to wake up"


def test_the_turn_after_it_looks_for_what_it_may_have_missed(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.reply()
    sleeper.backlog.take_all()
    sleeper.now += 0.01
    sleeper.turn()
    assert sleeper.store.calls[0] == ("discover",)


def test_whoever_wants_quiet_first_takes_in_what_was_sent(sleeper: Sleeper) -> None:
    sleeper.hint(5)

    async def look() -> list[int]:
        async with sleeper.exchange.quiet:
            return sleeper.holdings.ids()

    assert sleeper.run(look()) == [5], "it would have been taken for a stray"
    sleeper.reply()
    assert sleeper.backlogged() == [5], "and is not taken in twice"


def test_while_somebody_wants_quiet_nothing_is_sent(sleeper: Sleeper) -> None:
    async def hinted() -> None:
        sleep = asyncio.create_task(sleeper.exchange.sleep(10.0))
        await asyncio.sleep(0)
        async with sleeper.exchange.quiet:
            sleeper.exchange.notified(HINTER)
        sleep.cancel()

    sleeper.run(hinted())
    assert sleeper.store.sent == []


def test_a_drain_waits_for_what_was_sent_and_sends_nothing_more(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.run(sleeper.exchange.cease())
    assert sleeper.holdings.ids() == [5]
    sleeper.backlog.take_all()
    sleeper.hint(6)
    assert len(sleeper.store.sent) == 1


def test_a_drain_does_not_fail_by_what_was_sent(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.store.failures = 1
    sleeper.run(sleeper.exchange.cease())
    assert sleeper.exchange.strays_suspected


def test_a_lost_answer_makes_the_turn_fail_and_strays_suspected(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.store.failures = 2
    sleeper.reply()
    with pytest.raises(DatabaseError):
        sleeper.turn()
    assert sleeper.exchange.strays_suspected
    assert len(sleeper.holdings) == 0


def test_an_answer_without_a_lease_ends_the_tenure(sleeper: Sleeper) -> None:
    sleeper.hint()
    sleeper.store.alive = False
    sleeper.reply()
    with pytest.raises(LeaseLostError):
        sleeper.turn()


def test_an_answer_that_comes_after_trust_has_ended_brings_no_claims(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.now = sleeper.trust.expires_at
    sleeper.reply()
    assert (len(sleeper.holdings), len(sleeper.backlog)) == (0, 0)
    with pytest.raises(LeaseLostError):
        sleeper.turn()


def test_what_such_an_answer_has_claimed_is_looked_for_if_a_renewal_saves_the_lease(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.now = sleeper.trust.expires_at
    sleeper.reply()
    sleeper.trust.renewed(sleeper.now)
    sleeper.turn()
    assert sleeper.exchange.strays_suspected


def test_whoever_is_cancelled_while_he_waits_for_an_answer_leaves_a_suspicion(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def quiet() -> None:
        async with sleeper.exchange.quiet:
            pytest.fail("the answer has not come")

    async def cancelled() -> None:
        waiting = asyncio.create_task(quiet())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    sleeper.hint(5)
    monkeypatch.setattr(sleeper.store, "answer", never)
    sleeper.run(cancelled())
    assert sleeper.exchange.strays_suspected


def test_without_trust_nothing_is_sent(sleeper: Sleeper) -> None:
    sleeper.now = sleeper.trust.expires_at
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_what_was_sent_under_another_lease_brings_nothing(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.exchange.begin(8)
    sleeper.reply()
    assert len(sleeper.holdings) == 0


def test_nothing_stands_by_while_something_waits_to_be_written(sleeper: Sleeper) -> None:
    sleeper.exchange.settle(verdict(1))
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_nothing_stands_by_before_everything_was_looked_at(sleeper: Sleeper) -> None:
    sleeper.exchange.rest.told(True)
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_nothing_stands_by_for_slots_that_are_busy(sleeper: Sleeper) -> None:
    sleeper.free = 0
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_a_line_that_is_engaged_leaves_it_to_the_turn(sleeper: Sleeper) -> None:
    sleeper.store.free = False
    sleeper.hint(5)
    sleeper.turn()
    assert sleeper.holdings.ids() == [5]


def test_other_task_types_stand_it_down(sleeper: Sleeper) -> None:
    sleeper.hint(5, before=lambda: sleeper.exchange.serve(["b"]))
    assert sleeper.store.sent == []


def test_after_a_lost_answer_the_next_turn_can_claim(sleeper: Sleeper) -> None:
    sleeper.hint(5)
    sleeper.store.failures = 1
    sleeper.reply()
    with pytest.raises(DatabaseError):
        sleeper.turn()

    async def turn() -> float:
        async with asyncio.timeout(10):
            return await sleeper.exchange.turn()

    sleeper.now += 1.0
    sleeper.run(turn())
    assert sleeper.holdings.ids() == [5]


def test_what_was_sent_once_is_not_sent_again(sleeper: Sleeper) -> None:
    """What a second hint needs has to be planned anew: slots may have been taken meanwhile."""
    sleeper.feed = sleeper.backlog.take_all

    async def asleep() -> None:
        sleep = asyncio.create_task(sleeper.exchange.sleep(10.0))
        await asyncio.sleep(0)
        sleeper.exchange.notified(HINTER)
        sleeper.store.reply()
        sleeper.exchange.notified(HINTER)
        sleep.cancel()
        await asyncio.gather(sleep, return_exceptions=True)

    sleeper.run(asleep())
    assert len(sleeper.store.sent) == 1


def test_nothing_is_sent_while_an_answer_is_to_come(sleeper: Sleeper) -> None:
    standby = sleeper.exchange._standby
    for expected in (True, False):
        standby.ready(sleeper.store.ready_claim(7, [], 1))
        assert standby.send() is expected


def test_what_stood_by_in_one_sleep_is_not_sent_in_the_next(sleeper: Sleeper) -> None:
    sleeper.run(sleeper.exchange.sleep(0.0))
    sleeper.exchange.settle(verdict(1))
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_nothing_is_sent_when_the_slots_have_been_taken_meanwhile(sleeper: Sleeper) -> None:
    sleeper.hint(5, before=lambda: setattr(sleeper, "free", 0))
    assert sleeper.store.sent == []


def test_nothing_stands_by_once_claiming_is_over(sleeper: Sleeper) -> None:
    sleeper.exchange.claiming = False
    sleeper.hint(5)
    assert sleeper.store.sent == []


def test_a_drain_that_begins_meanwhile_stands_it_down(sleeper: Sleeper) -> None:
    async def asleep() -> None:
        sleep = asyncio.create_task(sleeper.exchange.sleep(10.0))
        await asyncio.sleep(0)
        await sleeper.exchange.cease()
        sleeper.exchange.notified(HINTER)
        sleep.cancel()
        await asyncio.gather(sleep, return_exceptions=True)

    sleeper.run(asleep())
    assert sleeper.store.sent == []
