"""The exchange's turn, on a store that answers from a script and a clock that is moved by hand."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from pgsched.errors import DatabaseError, DeadlineError, LockedError
from pgsched.model import Claim, Group, Horizon, Outcome, Retry, Verdict, VerdictKind, Want
from pgsched.rules.demand import Durations
from pgsched.rules.latecomers import SOONEST
from pgsched.rules.lease import Trust
from pgsched.rules.wakeups import CALM, CROWD_HINTS, LULL, STREAM
from pgsched.store.store import Exchanged, Readied
from pgsched.supervisor import resting
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.exchange import STRAYS_FOR, Exchange, LeaseLostError
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.parting import leave, settle_rest
from pgsched.supervisor.resting import LOOK, PLENTY, PREFERENCE
from pgsched.supervisor.survey import FULL_SCAN
from pgsched.supervisor.unwritten import BATCH


def claim(task_id: int, fence: int = 1) -> Claim:
    return Claim(task_id, fence, "a", "default", 0, "{}", 0, 3, None, 0.0, f"run_at {task_id}")


def verdict(task_id: int, kind: VerdictKind = VerdictKind.COMPLETED) -> Verdict:
    return Verdict(claim(task_id), kind, 0.1)


T = TypeVar("T")


class ScriptedStore:
    """Rows that are ready, and what happened to verdicts."""

    def __init__(self) -> None:
        self.ready: list[Claim] = []
        self.fenced: set[int] = set()
        self.alive = True
        self.failures = 0
        self.calls: list[tuple[Any, ...]] = []
        self.listening: bool | None = None
        self.told: list[bool] = []
        self.late: list[Claim] = []
        """Rows that are committed while the store is told whether to wake us, and of which nobody is told."""
        self.due_in = -1.0
        self.horizons = Horizon(1, 1)
        self.asked: list[str] = []
        """The task types of the last scan."""
        self.sent: list[Readied] = []
        self.free = True
        self._then: Callable[[], None] = lambda: None
        self._arrived: Exchanged | None = None

    def ready_claim(self, supervisor_id: int, wants: list[Want], total: int) -> Readied:
        return Readied(supervisor_id, wants, total, ("claim", []))

    def send(self, readied: Readied, then: Callable[[], None]) -> bool:
        if self.free:
            self.sent.append(readied)
            self._then = then
        return self.free

    def reply(self) -> None:
        """The answer to what was sent comes in."""
        if self.alive and not self.failures:
            self._arrived = self._take(self.sent[-1].total)
        self._then()

    def arrived(self) -> Exchanged | None:
        answer, self._arrived = self._arrived, None
        return answer

    async def answer(self, readied: Readied) -> Exchanged:
        return await self.exchange(readied.supervisor_id, [], readied.wants, readied.total)

    def _take(self, total: int) -> Exchanged:
        taken, self.ready = self.ready[:total], self.ready[total:]
        return Exchanged([], taken, 0, 0, self.alive)

    async def discover(self, task_types: Sequence[str], queues: Sequence[str] | None) -> list[Group]:
        self.calls.append(("discover",))
        self.asked = list(task_types)
        head = self.ready[:1]
        return [Group("a", "default", 0, one.task_id, one.run_at, self.due_in) for one in head]

    async def horizon(self) -> Horizon:
        return self.horizons

    async def exchange(
        self,
        supervisor_id: int,
        verdicts: Sequence[Verdict],
        wants: Sequence[Want],
        total: int,
        *,
        resent: bool = False,
    ) -> Exchanged:
        self.calls.append(("exchange", supervisor_id, [v.claim.task_id for v in verdicts], total, resent))
        if self.failures:
            self.failures -= 1
            raise DatabaseError("away")
        settled = [v.claim.task_id not in self.fenced for v in verdicts]
        return self._take(total if wants else 0)._replace(settled=settled)

    async def strays(self, supervisor_id: int, held: Sequence[int]) -> list[Claim]:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("away")
        self.calls.append(("strays", supervisor_id, list(held)))
        return []

    async def deregister(self, supervisor_id: int) -> None:
        self.calls.append(("deregister", supervisor_id))

    async def set_listening(self, supervisor_id: int, listening: bool) -> None:
        if self.failures:
            self.failures -= 1
            raise DatabaseError("away")
        self.ready += self.late
        self.late = []
        self.listening = listening
        self.told.append(listening)


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.settles: list[tuple[int, int]] = []

    def claimed(self, claims: Sequence[Claim], *, skipped: int, failed: int, seconds: float) -> None: ...

    def settled(self, verdicts: Sequence[Verdict], *, fenced: int, seconds: float) -> None:
        self.settles.append((len(verdicts), fenced))

    def outcome(self, claim: Claim, outcome: Outcome, verdict: Verdict | None) -> None: ...

    def reaped(self, claims: Sequence[Claim]) -> None: ...

    def sampled(self, name: str, value: float, **labels: str) -> None: ...

    def event(self, name: str, level: int, **fields: object) -> None: ...


class Bench:
    """An exchange and everything around it."""

    def __init__(self, runner: asyncio.Runner, *, free: int = 2, listens: bool = False) -> None:
        self._runner = runner
        self.now = 100.0
        self.free = free
        self.feed: Callable[[], object] = lambda: None
        self.store = ScriptedStore()
        self.heard = Heard()
        self.holdings = Holdings()
        self.backlog = Backlog(lambda: self.now)
        self.trust = Trust(15.0)
        self.trust.renewed(self.now)
        self.exchange = Exchange(
            self.store,  # type: ignore[arg-type]
            self.trust,
            self.holdings,
            self.backlog,
            Durations(),
            self.heard,
            slots=lambda: 2,
            free=lambda: self.free,
            occupied=lambda: 2 - self.free,
            feed=self._fed,
            task_types=["a"],
            queues=None,
            poll_interval=1.0,
            listens=listens,
            clock=lambda: self.now,
        )
        self.exchange.begin(7)

    def _fed(self) -> None:
        self.feed()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """All in one loop, because what waits remembers its own."""
        return self._runner.run(call)

    def turn(self) -> float:
        return self.run(self.exchange.turn())

    def rest(self) -> float:
        """Take a turn and let the pause after it go by; return how long it was meant to be."""
        pause = self.turn()
        self.now += pause
        self.run(self.exchange.sleep(0.0))
        return pause

    def until(self, condition: Callable[[], bool]) -> float:
        """Turn after turn, each after the pause that it wants, until something is so; return how long that took."""
        began = self.now
        while not condition():
            pause = self.turn()
            if not condition():
                self.now += pause
                self.run(self.exchange.sleep(0.0))
        return self.now - began

    def crowd(self) -> None:
        """Hints come thick, from many."""
        for sender in range(CROWD_HINTS):
            self.exchange.rest.notified(sender)
        self.turn()
        assert self.store.listening is False

    def exchanges(self) -> list[tuple[Any, ...]]:
        return [call for call in self.store.calls if call[0] == "exchange"]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        yield Bench(runner)


@pytest.fixture
def sleeper() -> Iterator[Bench]:
    """One that can be woken, and has asked for it."""
    with asyncio.Runner() as runner:
        bench = Bench(runner, listens=True)
        bench.turn()
        assert bench.store.listening is True
        yield bench


def test_what_is_claimed_is_held_and_waits_in_the_backlog(bench: Bench) -> None:
    bench.store.ready = [claim(1), claim(2), claim(3)]
    bench.turn()
    assert bench.holdings.ids() == [1, 2], "one for each free slot of a type that is not known"
    assert [one.task_id for one in bench.backlog.claims()] == [1, 2]


def test_a_task_that_is_claimed_anew_waits_once(bench: Bench) -> None:
    """Somebody cancelled it, and queued it again, before we were told of either."""
    bench.store.ready = [claim(1), claim(2)]
    bench.turn()
    bench.store.ready = [claim(1, fence=3)]
    bench.free = 3
    bench.now += 10
    bench.turn()
    assert bench.backlog.claims() == [claim(2), claim(1, fence=3)]
    assert claim(1, fence=3) in bench.holdings


def test_verdicts_and_wants_share_one_round_trip(bench: Bench) -> None:
    bench.store.ready = [claim(2)]
    bench.holdings.add([claim(1)])
    bench.exchange.settle(verdict(1))
    bench.turn()
    assert bench.exchanges() == [("exchange", 7, [1], 2, False)]
    assert bench.holdings.ids() == [2]
    assert bench.heard.settles == [(1, 0)]


def test_a_fenced_verdict_closes_its_claim_and_is_counted(bench: Bench) -> None:
    bench.holdings.add([claim(1), claim(2)])
    bench.store.fenced = {1}
    bench.exchange.settle(verdict(1))
    bench.exchange.settle(verdict(2))
    bench.turn()
    assert bench.heard.settles == [(1, 1)]
    assert len(bench.holdings) == 0


def test_a_batch_whose_reply_was_lost_is_sent_again_as_it_was_and_before_all_others(bench: Bench) -> None:
    bench.holdings.add([claim(1), claim(2)])
    bench.store.failures = 1
    bench.exchange.settle(verdict(1))
    with pytest.raises(DatabaseError):
        bench.turn()
    bench.exchange.settle(verdict(2))
    assert bench.exchange.unsettled() == 2
    bench.turn()
    bench.turn()
    assert [(call[2], call[4]) for call in bench.exchanges()] == [([1], False), ([1], True), ([2], False)]
    assert bench.exchange.unsettled() == 0
    assert len(bench.holdings) == 0


@pytest.mark.parametrize("settles", [False, True])
def test_strays_are_suspected_until_they_were_looked_for_after_the_server_must_have_ended(
    bench: Bench, settles: bool
) -> None:
    """Also when no claim was lost: what was written before may be undone where the server comes back."""
    if settles:
        bench.exchange.settle(verdict(1))
    else:
        bench.store.ready = [claim(1)]
    bench.store.failures = 1
    with pytest.raises(DatabaseError):
        bench.turn()
    suspected = []
    for waited in (0.0, STRAYS_FOR - 1, STRAYS_FOR):
        bench.exchange.strays_released(bench.now + waited)
        suspected.append(bench.exchange.strays_suspected)
    assert suspected == [True, True, False], "until then the lost claim may still be committed"


def test_what_was_locked_is_tried_again_without_a_claim(bench: Bench) -> None:
    """It may be locked for long, and claims are not to wait for it."""
    bench.store.ready = [claim(2)]
    bench.exchange.settle(verdict(1))
    plain = bench.store.exchange

    async def locked(*arguments: Any, **named: Any) -> Exchanged:
        bench.store.exchange = plain  # type: ignore[method-assign]
        await plain(*arguments, **named)
        raise LockedError("canceling statement due to lock timeout")

    bench.store.exchange = locked  # type: ignore[method-assign]
    with pytest.raises(LockedError):
        bench.turn()
    bench.store.ready = [claim(task_id) for task_id in range(2, 50)]
    while bench.exchange.unsettled():
        bench.turn()
        bench.free += 10
        bench.now += 1.0
    first, claimed, again = bench.exchanges()
    assert (first[2], first[3] > 0) == ([1], True)
    assert (claimed[2], claimed[3] > 0) == ([], True)
    assert again[2:] == ([1], 0, True)


def test_a_verdict_that_may_be_written_or_not_is_sent_again_and_the_claims_beside_it_are_kept(bench: Bench) -> None:
    bench.holdings.add([claim(1), claim(2)])
    bench.store.ready = [claim(3)]
    bench.exchange.settle(verdict(1))
    bench.exchange.settle(verdict(2))
    plain = bench.store.exchange

    async def unsure(*arguments: Any, **named: Any) -> Exchanged:
        bench.store.exchange = plain  # type: ignore[method-assign]
        return (await plain(*arguments, **named))._replace(unsure=[1])

    bench.store.exchange = unsure  # type: ignore[method-assign]
    bench.turn()
    assert bench.holdings.ids() == [2, 3]
    assert bench.heard.settles == [(1, 0)]
    assert bench.exchange.strays_suspected, "what has kept the answer away may have undone others"
    assert bench.exchange.unsettled() == 1
    while bench.exchange.unsettled():
        bench.turn()
        bench.now += 1.0
    assert bench.exchanges()[-1][2:] == ([2], 0, True)
    assert bench.heard.settles == [(1, 0), (1, 0)]


def test_a_suspicion_is_told_once(bench: Bench) -> None:
    bench.exchange.suspect_strays()
    assert bench.exchange.suspicion.is_set()
    bench.exchange.suspicion.clear()
    bench.exchange.suspect_strays()
    assert not bench.exchange.suspicion.is_set(), "the reaper looks every few seconds already"


def test_a_settle_that_learns_of_the_loss_is_counted_among_the_dropped(bench: Bench) -> None:
    bench.store.alive = False
    bench.exchange.settle(verdict(1))
    with pytest.raises(LeaseLostError):
        bench.turn()
    assert [v.claim.task_id for v in bench.exchange.forget()] == [1]


def test_without_trust_nothing_is_sent(bench: Bench) -> None:
    bench.exchange.settle(verdict(1))
    bench.now = bench.trust.expires_at
    with pytest.raises(LeaseLostError):
        bench.turn()
    assert bench.store.calls == []


def test_an_answer_that_comes_after_trust_has_ended_brings_no_claims(bench: Bench) -> None:
    bench.store.ready = [claim(1)]
    bench.exchange.settle(verdict(2))
    plain = bench.store.exchange

    async def slow(*arguments: Any, **more: Any) -> Exchanged:
        answer = await plain(*arguments, **more)
        bench.now = bench.trust.expires_at
        return answer

    bench.store.exchange = slow  # type: ignore[method-assign]
    with pytest.raises(LeaseLostError):
        bench.turn()
    assert len(bench.holdings) == 0
    assert len(bench.backlog) == 0
    assert bench.heard.settles == [(1, 0)], "what was written was written"


def test_a_lease_that_the_database_has_given_up_ends_the_tenure(bench: Bench) -> None:
    bench.store.alive = False
    bench.exchange.settle(verdict(1))
    with pytest.raises(LeaseLostError):
        bench.turn()


def test_nothing_is_claimed_once_claiming_is_over(bench: Bench) -> None:
    bench.store.ready = [claim(1)]
    bench.exchange.claiming = False
    bench.turn()
    assert bench.store.calls == []


def test_a_halted_exchange_begins_nothing_until_the_rest_is_settled(bench: Bench) -> None:
    bench.run(bench.exchange.halt())
    bench.exchange.settle(verdict(1))
    bench.turn()
    assert bench.exchanges() == []
    bench.run(settle_rest(bench.exchange, bench.heard, 1, 0.0))
    assert [call[2] for call in bench.exchanges()] == [[1]]


def test_a_drain_that_begins_while_groups_are_looked_up_stops_that_claim(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.ready = [claim(1)]
    plain = bench.store.discover

    async def discover(*arguments: Any) -> list[Group]:
        groups = await plain(*arguments)
        bench.exchange.claiming = False
        return groups

    monkeypatch.setattr(bench.store, "discover", discover)
    bench.turn()
    assert bench.exchanges() == []


def test_an_idle_turn_waits_for_the_poll_interval_and_asks_for_wake_ups(sleeper: Bench) -> None:
    assert sleeper.store.listening is True
    assert sleeper.turn() <= 1.0


def test_a_row_that_was_committed_before_the_flag_was_seen_is_found_without_a_hint() -> None:
    with asyncio.Runner() as runner:
        bench = Bench(runner, listens=True)
        bench.store.late = [claim(1)]
        assert bench.turn() <= LOOK
        assert bench.store.ready, "it came too late for the first look"
        bench.turn()
        assert bench.holdings.ids() == [1]


def test_a_row_whose_transaction_was_under_way_when_wake_ups_were_asked_for_is_found(sleeper: Bench) -> None:
    """It was inserted before the flag could be seen, and is committed after the look that followed."""
    sleeper.store.horizons = Horizon(8, 9)
    assert sleeper.rest() == pytest.approx(SOONEST)
    sleeper.store.ready, sleeper.store.horizons = [claim(1)], Horizon(9, 9)
    sleeper.turn()
    assert sleeper.holdings.ids() == [1]


def test_a_hint_that_comes_while_groups_are_looked_up_is_not_lost(
    sleeper: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look may have begun before its row was committed."""
    plain = sleeper.store.discover

    async def discover(*arguments: Any) -> list[Group]:
        monkeypatch.setattr(sleeper.store, "discover", plain)
        groups = await plain(*arguments)
        sleeper.store.ready = [claim(1)]
        sleeper.exchange.notified(5)
        return groups

    monkeypatch.setattr(sleeper.store, "discover", discover)
    sleeper.turn()
    assert sleeper.holdings.ids() == []
    assert sleeper.until(lambda: sleeper.holdings.ids() == [1]) <= 2 * LOOK


def test_nobody_looks_twice_while_no_transaction_is_under_way(sleeper: Bench) -> None:
    sleeper.store.calls.clear()
    assert sleeper.turn() == 1.0
    assert sleeper.store.calls == [("discover",)]


def test_a_row_that_nobody_tells_of_because_wake_ups_were_declined_is_found_within_a_few_looks(sleeper: Bench) -> None:
    sleeper.crowd()
    sleeper.store.ready = [claim(1)]
    assert sleeper.until(lambda: sleeper.holdings.ids() == [1]) <= 2 * LOOK


def test_wake_ups_that_were_declined_are_asked_for_when_it_has_been_quiet(sleeper: Bench) -> None:
    sleeper.now += 2 * CALM
    sleeper.crowd()
    assert LULL <= sleeper.until(lambda: sleeper.store.listening is True) <= LULL + 2 * LOOK
    sleeper.rest()
    assert sleeper.rest() == 1.0, "and then it sleeps"


def test_a_row_that_is_committed_while_wake_ups_are_declined_is_found(sleeper: Bench) -> None:
    sleeper.store.late = [claim(1)]
    sleeper.crowd()
    sleeper.rest()
    sleeper.rest()
    assert sleeper.holdings.ids() == [1]


def test_hints_that_are_meant_for_others_change_nothing(sleeper: Bench) -> None:
    sleeper.store.ready = [claim(1)]
    sleeper.turn()
    sleeper.backlog.take_all()
    sleeper.crowd()
    sleeper.turn()
    sleeper.store.calls.clear()
    sleeper.exchange.rest.notified(1)
    sleeper.turn()
    assert sleeper.exchanges() == [], "the next look will tell"


def test_what_was_said_about_wake_ups_is_said_again_after_a_failure(sleeper: Bench) -> None:
    sleeper.exchange.settle(verdict(1))
    sleeper.store.failures = 1
    with pytest.raises(DatabaseError):
        sleeper.turn()
    sleeper.now += 1.0
    sleeper.turn()
    assert sleeper.store.told == [True, True], "a server that crashed may have forgotten"


def test_while_rows_stream_in_they_are_claimed_with_what_has_ended_and_without_a_scan(sleeper: Bench) -> None:
    sleeper.crowd()
    sleeper.store.ready = [claim(1)]
    for _ in range(2):
        sleeper.rest()
    sleeper.turn()
    sleeper.backlog.take_all()
    sleeper.store.calls.clear()
    sleeper.store.ready = [claim(2)]
    sleeper.exchange.settle(verdict(1))
    sleeper.rest()
    sleeper.turn()
    assert ("exchange", 7, [1], 2, False) in sleeper.store.calls
    assert sleeper.holdings.ids() == [2]


def test_a_row_that_becomes_due_is_claimed_at_once_and_looked_after_then(bench: Bench) -> None:
    bench.store.ready, bench.store.due_in = [claim(1)], 0.5
    assert bench.rest() == pytest.approx(0.5)
    bench.store.calls.clear()
    bench.turn()
    assert [call[0] for call in bench.store.calls] == ["exchange"]
    assert bench.holdings.ids() == [1]


def test_a_pause_that_ends_without_a_reason_looks_for_what_nobody_told_of(bench: Bench) -> None:
    assert bench.rest() == 1.0
    bench.store.calls.clear()
    bench.turn()
    assert [call[0] for call in bench.store.calls] == ["discover"]


def test_a_saturated_supervisor_declines_wake_ups(sleeper: Bench) -> None:
    sleeper.free = 0
    sleeper.now += 0.3
    sleeper.turn()
    assert sleeper.store.listening is False


def test_forgetting_drops_what_waits_and_what_is_unsure(bench: Bench) -> None:
    bench.store.failures = 1
    bench.exchange.settle(verdict(1))
    with pytest.raises(DatabaseError):
        bench.turn()
    bench.exchange.settle(verdict(2))
    assert [v.claim.task_id for v in bench.exchange.forget()] == [1, 2]
    assert bench.exchange.unsettled() == 0


def test_a_settle_takes_no_more_than_a_batch(bench: Bench) -> None:
    for number in range(BATCH + 3):
        bench.exchange.settle(verdict(number))
    bench.turn()
    bench.turn()
    assert [len(call[2]) for call in bench.exchanges()] == [BATCH, 3]


def test_last_words_are_tried_as_often_as_was_said(bench: Bench) -> None:
    bench.exchange.settle(verdict(1))
    bench.store.failures = 5
    bench.run(settle_rest(bench.exchange, bench.heard, 2, 0.0))
    assert len(bench.exchanges()) == 2
    assert bench.exchange.unsettled() == 1


def test_last_words_are_tried_for_as_long_as_was_said(bench: Bench) -> None:
    """A server that refuses answers at once: two attempts are over before it is back."""
    bench.exchange.settle(verdict(1))
    bench.store.failures = 4
    bench.run(settle_rest(bench.exchange, bench.heard, 2, 600.0))
    assert len(bench.exchanges()) == 5
    assert not bench.exchange.unsettled()


def test_last_words_that_are_cut_off_are_told(bench: Bench) -> None:
    """A second signal ends the wait for the database; what is lost with it is no secret."""
    bench.exchange.settle(verdict(1))
    bench.store.failures = 100
    told: list[str] = []
    bench.heard.event = lambda name, level, **fields: told.append(name)  # type: ignore[method-assign]

    with pytest.raises(TimeoutError):
        bench.run(asyncio.wait_for(settle_rest(bench.exchange, bench.heard, 2, 600.0), 0.05))
    assert told == ["not_settled"]


def test_a_retry_makes_the_survey_look_again(bench: Bench) -> None:
    bench.turn()
    scans = len([call for call in bench.store.calls if call[0] == "discover"])
    bench.holdings.add([claim(1)])
    bench.exchange.settle(verdict(1, VerdictKind.RETRY))
    bench.turn()
    bench.now += 0.01
    bench.turn()
    assert len([call for call in bench.store.calls if call[0] == "discover"]) > scans


def test_retry_defaults_are_the_documented_ones() -> None:
    assert Retry() == Retry(max=3, base=1.0, cap=600.0)


def test_verdicts_gather_until_a_slot_starves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "GATHER", 600.0)
    monkeypatch.setattr(resting, "LONGEST_GATHER", 600.0)
    bench.free = 0
    bench.exchange.settle(verdict(1))

    async def gather() -> None:
        sleeping = asyncio.create_task(bench.exchange.sleep(0.0))
        bench.exchange.rest.fed()
        await asyncio.wait({sleeping}, timeout=0.05)
        assert not sleeping.done(), "every slot has work"
        bench.free = 1
        bench.exchange.rest.fed()
        async with asyncio.timeout(10):
            await sleeping

    bench.run(gather())


def test_plenty_of_verdicts_are_written_before_any_more_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "GATHER", 600.0)
    monkeypatch.setattr(resting, "LONGEST_GATHER", 600.0)
    bench.free = 0

    async def rests(pause: float) -> bool:
        """Whether it waits for more."""
        sleeping = asyncio.create_task(bench.exchange.sleep(pause))
        await asyncio.wait({sleeping}, timeout=0.05)
        rested = not sleeping.done()
        sleeping.cancel()
        return rested

    for number in range(PLENTY - 1):
        bench.exchange.settle(verdict(number))
    assert bench.run(rests(0.0))
    bench.exchange.settle(verdict(PLENTY))
    assert not bench.run(rests(0.0))
    # Nothing may be begun just now: whoever does not wait then keeps everybody else from running.
    assert bench.run(rests(1.0))


def test_verdicts_of_longer_tasks_gather_longer_within_bounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    plain = asyncio.timeout

    def timeout(seconds: float) -> asyncio.Timeout:
        waited.append(seconds)
        return plain(0)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    bench.free = 0
    for seconds in (0.0, 0.01, 5.0):
        bench.exchange.forget()
        bench.exchange.settle(verdict(1)._replace(seconds=seconds))
        bench.run(bench.exchange.sleep(1.0))
    assert waited == [resting.GATHER, 0.01, resting.LONGEST_GATHER]


def test_whoever_was_at_rest_lets_the_worker_begin_before_it_keeps_its_books(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "sched_yield", lambda: done.append("gave way"))
    monkeypatch.setattr(bench.heard, "claimed", lambda claims, **counts: done.append("books"))

    def feed() -> None:
        done.append("fed")
        bench.backlog.take_all()

    bench.feed = feed
    bench.store.ready = [claim(1)]
    bench.turn()
    assert done == ["fed", "gave way", "books"]
    done.clear()
    bench.store.ready = [claim(2)]
    bench.exchange.settle(verdict(1))
    bench.now += 1.0
    bench.turn()
    assert done == ["fed", "books"], "there is more to do"


def test_no_scan_gets_in_the_way_right_after_a_claim(bench: Bench) -> None:
    bench.feed = bench.backlog.take_all
    bench.store.ready = [claim(1)]
    assert bench.turn() == pytest.approx(PREFERENCE)
    bench.now += PREFERENCE
    bench.store.calls.clear()
    bench.turn()
    assert bench.store.calls == [("discover",)], "there may be more, in other groups"


def test_a_stream_of_claims_puts_the_scan_off_for_no_longer_than_its_interval(bench: Bench) -> None:
    """A slot is free again whenever an answer comes; there may be groups that go first."""
    bench.feed = bench.backlog.take_all
    bench.free = 1
    bench.store.ready = [claim(number) for number in range(5000)]
    for _ in range(3000):
        bench.turn()
        bench.now += 0.001
    assert bench.store.calls.count(("discover",)) >= 3


def test_other_task_types_are_all_that_is_looked_for_from_then_on(bench: Bench) -> None:
    bench.turn()
    assert bench.store.asked == ["a"]
    bench.exchange.serve(["b"])
    bench.now += 1.0
    bench.turn()
    assert bench.store.asked == ["b"]


def test_a_new_lease_begins_without_suspicion_and_asks_for_wake_ups_anew(sleeper: Bench) -> None:
    sleeper.exchange.suspect_strays()
    sleeper.exchange.begin(8)
    assert not sleeper.exchange.strays_suspected
    sleeper.now += LULL
    sleeper.turn()
    assert sleeper.store.told == [True, True], "the row is another"


def test_after_a_turn_it_rests_although_it_was_woken_before(bench: Bench) -> None:
    bench.exchange.rest.wake()
    bench.turn()

    async def rests() -> bool:
        sleep = asyncio.create_task(bench.exchange.sleep(600.0))
        await asyncio.wait({sleep}, timeout=0.05)
        resting = not sleep.done()
        sleep.cancel()
        await asyncio.gather(sleep, return_exceptions=True)
        return resting

    assert bench.run(rests())


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_lease_is_given_up_after_what_might_be_ours_by_mistake(bench: Bench, failures: int) -> None:
    bench.store.failures = failures
    told: list[str] = []
    bench.heard.event = lambda name, level, **fields: told.append(name)  # type: ignore[method-assign]
    store: Any = bench.store
    bench.run(leave(store, bench.heard, 7, 2))
    assert told == (["not_deregistered"] if failures == 2 else [])
    assert bench.store.calls == ([("strays", 7, []), ("deregister", 7)] if failures < 2 else [])


def blind(bench: Bench, failure: DatabaseError) -> None:
    """From now on no scan says what is due."""

    async def discover(*_: Any) -> list[Group]:
        bench.store.calls.append(("discover",))
        raise failure

    bench.store.discover = discover  # type: ignore[assignment]


def test_a_scan_that_takes_too_long_holds_up_neither_verdicts_nor_claims_of_what_is_remembered(bench: Bench) -> None:
    """Somebody keeps an old snapshot, and so dead entries that each scan walks over."""
    bench.feed = bench.backlog.take_all
    bench.store.ready = [claim(1), claim(2)]
    bench.turn()
    bench.store.ready = [claim(3)]
    blind(bench, DeadlineError("canceling statement due to statement timeout"))
    bench.now += FULL_SCAN
    bench.exchange.settle(verdict(1))
    bench.turn()
    assert [call[2] for call in bench.exchanges()] == [[], [1]]
    assert bench.holdings.ids() == [2, 3]
    bench.exchange.settle(verdict(2))
    bench.turn()
    bench.now += STREAM
    bench.turn()
    bench.store.ready = [claim(4)]
    bench.until(lambda: bench.holdings.ids() == [3, 4])
    assert bench.store.calls.count(("discover",)) == 2, "the next one is put off; the group is tried without it"


def test_verdicts_are_written_where_no_scan_has_ever_come_to_its_end(bench: Bench) -> None:
    blind(bench, DeadlineError("canceling statement due to statement timeout"))
    bench.exchange.settle(verdict(1))
    bench.turn()
    assert [call[2] for call in bench.exchanges()] == [[1]]
    assert not bench.exchange.strays_suspected, "nothing that was written is in doubt"


def test_a_scan_that_fails_is_told_when_the_verdicts_are_written(bench: Bench) -> None:
    blind(bench, DatabaseError("permission denied"))
    bench.exchange.settle(verdict(1))
    with pytest.raises(DatabaseError, match="permission denied"):
        bench.turn()
    assert [call[2] for call in bench.exchanges()] == [[1]]
    assert bench.exchange.unsettled() == 0


def test_a_scan_that_takes_too_long_and_after_which_there_is_nothing_to_do_is_a_failure(bench: Bench) -> None:
    """Nothing has shown that the database answers anything."""
    blind(bench, DeadlineError("no answer from the database within 10 s"))
    with pytest.raises(DeadlineError):
        bench.turn()
