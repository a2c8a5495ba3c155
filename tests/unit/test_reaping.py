"""The reaper's turn: whose leases it ends, and when rows may be taken for strays."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pgsched.errors import DatabaseError
from pgsched.model import Claim, Identity, Outcome, OutcomeKind
from pgsched.supervisor import reaping
from pgsched.supervisor.holdings import Holdings
from pgsched.supervisor.reaping import BATCH, SUSPICIOUS, Reaper

CLAIM = Claim(1, 1, "a", "default", 0, "{}", 0, 3, None, 0.0, "")
ME = Identity(host="here", boot_id="boot", pid_namespace=1, pid=10, started_ticks=5, processes=1)


class ScriptedStore:
    def __init__(self) -> None:
        self.neighbours_found = [(7, 10, 5), (8, 11, 6), (9, 12, 6)]
        self.expired: list[int] = []
        self.looked_for_strays: list[list[int]] = []
        self.reaped_before: list[Claim] = []
        self.away = False
        self.dead: list[Claim] = []

    async def neighbours(self, boot_id: str, pid_namespace: int) -> list[tuple[int, int, int]]:
        return self.neighbours_found

    async def expire(self, ids: Sequence[int]) -> None:
        self.expired += ids

    async def strays(self, supervisor_id: int, held: Sequence[int]) -> list[Claim]:
        self.looked_for_strays.append(list(held))
        return self.reaped_before

    async def reap(self, supervisor_id: int, limit: int) -> list[Claim]:
        if self.away:
            raise DatabaseError("away")
        taken, self.dead = self.dead[:limit], self.dead[limit:]
        return taken


class ScriptedExchange:
    def __init__(self) -> None:
        self.quiet = asyncio.Lock()
        self.strays_suspected = False
        self.suspicion = asyncio.Event()
        self.clock = lambda: 3.0

    def suspect_strays(self) -> None:
        self.strays_suspected = True

    def strays_released(self, began: float) -> None:
        self.strays_suspected = False


class Deaf:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **fields: None


class Bench:
    def __init__(self) -> None:
        self.store = ScriptedStore()
        self.exchange = ScriptedExchange()
        self.holdings = Holdings()
        self.outcomes: list[tuple[Claim, Outcome]] = []
        self.reaper = Reaper(
            self.store,  # type: ignore[arg-type]
            ME,
            self.holdings,
            self.exchange,  # type: ignore[arg-type]
            Deaf(),
            supervisor_id=7,
            interval=30.0,
            on_outcome=lambda claim, outcome: self.outcomes.append((claim, outcome)),
        )


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The pids of processes that are no more."""
    pids: set[int] = set()
    monkeypatch.setattr(reaping, "is_gone", lambda pid, ticks: pid in pids)
    return pids


async def test_only_neighbours_whose_process_is_gone_lose_their_lease(gone: set[int]) -> None:
    bench = Bench()
    await bench.reaper.turn()
    assert bench.store.expired == []
    # Our own process, as another pid namespace might show it.
    gone |= {10, 12}
    await bench.reaper.turn()
    assert bench.store.expired == [9]


async def test_a_lost_reply_makes_it_look_for_strays_soon(gone: set[int]) -> None:
    bench = Bench()
    assert await bench.reaper.turn() == 30.0
    bench.store.away = True
    with pytest.raises(DatabaseError):
        await bench.reaper.turn()
    assert bench.exchange.strays_suspected
    bench.store.away = False
    assert bench.store.looked_for_strays == []
    assert await bench.reaper.turn() == 30.0
    assert bench.store.looked_for_strays == [[]]
    bench.exchange.strays_released = lambda began: None  # type: ignore[method-assign]
    bench.exchange.suspect_strays()
    assert await bench.reaper.turn() == SUSPICIOUS


async def test_a_suspicion_ends_the_wait_for_the_next_turn(gone: set[int]) -> None:
    bench = Bench()
    waiting = asyncio.create_task(bench.reaper.sleep(3600.0))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    bench.exchange.suspicion.set()
    async with asyncio.timeout(30):
        await waiting
        await bench.reaper.turn()
    assert not bench.exchange.suspicion.is_set()


async def test_what_a_lost_reap_brought_is_lost_like_any_other(gone: set[int]) -> None:
    bench = Bench()
    bench.exchange.suspect_strays()
    bench.store.reaped_before = [CLAIM]
    await bench.reaper.turn()
    assert [(claim, outcome.kind) for claim, outcome in bench.outcomes] == [(CLAIM, OutcomeKind.LOST)]
    assert CLAIM in bench.holdings


async def test_strays_are_not_looked_for_while_a_claim_is_in_flight(gone: set[int]) -> None:
    bench = Bench()
    bench.exchange.suspect_strays()
    async with bench.exchange.quiet:
        turn = asyncio.create_task(bench.reaper.turn())
        await asyncio.wait({turn}, timeout=0.05)
        assert not turn.done()
        assert bench.store.looked_for_strays == []
        bench.holdings.add([CLAIM])
    await turn
    assert bench.store.looked_for_strays == [[1]]


async def test_it_reaps_until_a_batch_is_not_full(gone: set[int]) -> None:
    bench = Bench()
    bench.store.dead = [CLAIM._replace(task_id=number) for number in range(BATCH + 3)]
    await bench.reaper.turn()
    assert len(bench.outcomes) == BATCH + 3
