"""What is changed while tasks run: clamped, in order, announced; on a pool that only remembers."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from pgsched.config import MAX_PROCESSES, Settings
from pgsched.errors import AppError, DatabaseError, PgschedError
from pgsched.model import Claim, Identity, Retry, TaskType
from pgsched.supervisor.backlog import Backlog
from pgsched.supervisor.changing import Announcer, Changes
from pgsched.supervisor.exchange import LeaseLostError
from tests.support import eventually_async
from tests.unit.test_supervisor import Deaf

OLD = {"both": TaskType(name="both"), "old": TaskType(name="old", retry=Retry(max=1, base=2.0, cap=3.0))}
NEW = {"both": TaskType(name="both"), "new": TaskType(name="new")}


def claim(task_id: int, task_type: str) -> Claim:
    return Claim(task_id, 1, task_type, "default", 0, "{}", 0, 3, None, 0.0, "")


class Hearing(Deaf):
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def event(self, name: str, level: int, **fields: object) -> None:
        self.events.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Pool:
    def __init__(self) -> None:
        self.settings = Settings(app="a:app", processes=2)
        self.task_types = OLD
        self.ahead: list[Claim] = []
        self.sizes: list[int] = []
        self.room = MAX_PROCESSES
        self.error: PgschedError | None = None
        self.loads = 0

    def resize(self, processes: int) -> None:
        self.sizes.append(processes)
        self.settings = dataclasses.replace(self.settings, processes=min(processes, self.room))

    @asynccontextmanager
    async def reload(self) -> AsyncIterator[Callable[[], None]]:
        self.loads += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        yield self._adopt

    def _adopt(self) -> None:
        self.task_types = NEW

    def recall(self) -> list[Claim]:
        taken, self.ahead = self.ahead, []
        return taken


class Quiet(asyncio.Lock):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []
        """Those that are met by whoever enters."""

    async def __aenter__(self) -> None:
        if self.errors:
            raise self.errors.pop()
        await super().__aenter__()


class Exchange:
    def __init__(self) -> None:
        self.quiet = Quiet()
        self.served: list[list[str]] = []

    def serve(self, task_types: list[str]) -> None:
        assert self.quiet.locked()
        self.served.append(task_types)


class Bench:
    """Changes with all that they touch."""

    def __init__(self) -> None:
        self.pool, self.backlog, self.observer, self.exchange = Pool(), Backlog(), Hearing(), Exchange()
        self.given_back: list[int] = []
        self.changes = Changes(
            self.pool.settings,
            self.pool,  # type: ignore[arg-type]
            self.backlog,
            self.observer,
            version="0",
            give_back=lambda claims: self.given_back.extend(each.task_id for each in claims),
        )
        self.changes.begin(OLD)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.changes.run(self.exchange))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_there_is_always_a_slot_and_never_more_than_there_may_be() -> None:
    bench = Bench()
    async with bench.running():
        for _ in range(4):
            bench.changes.step(-1)
        assert bench.pool.sizes == [1]
        bench.changes.step(1)
        assert bench.pool.sizes == [1, 2]
        bench.changes.resize(MAX_PROCESSES)
        bench.changes.step(1)
        assert bench.pool.sizes == [1, 2, MAX_PROCESSES]
        assert bench.changes.identity.processes == MAX_PROCESSES


async def test_what_is_asked_during_the_start_is_done_after_it_and_nothing_once_it_drains() -> None:
    bench = Bench()
    bench.changes.step(1)
    bench.changes.step(1)
    bench.changes.reload()
    assert (bench.pool.sizes, bench.pool.loads) == ([], 0)
    async with bench.running():
        await eventually_async(lambda: "reloaded" in bench.observer.names())
        assert bench.pool.sizes == [4]
    bench.changes.step(1)
    assert bench.pool.sizes == [4]


async def test_more_slots_than_cpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsched.supervisor.changing.available_cpus", lambda: 3)
    bench = Bench()
    async with bench.running():
        for number in (3, 4, 3):
            bench.changes.resize(number)
    assert [fields["cpus"] for name, fields in bench.observer.events if name == "resized"] == [None, 3, None]


async def test_more_slots_than_there_is_room_for_are_told_and_not_wanted_any_longer() -> None:
    bench = Bench()
    bench.pool.room = 4
    async with bench.running():
        bench.changes.resize(100)
        bench.changes.step(-1)
    resized = [fields for name, fields in bench.observer.events if name == "resized"]
    assert [(fields["processes"], fields["too_many"]) for fields in resized] == [(4, 100), (3, None)]
    assert bench.changes.identity.processes == 3


async def test_a_reload_gives_back_what_the_new_app_lacks() -> None:
    """In the backlog, and what was sent ahead to workers."""
    bench = Bench()
    bench.backlog.push([claim(3, "old"), claim(4, "both")])
    bench.pool.ahead = [claim(1, "both"), claim(2, "old")]
    async with bench.running():
        bench.changes.reload()
        await eventually_async(lambda: "reloaded" in bench.observer.names())
    assert bench.exchange.served == [["both", "new"]]
    assert bench.given_back == [2, 3]
    assert [each.task_id for each in bench.backlog.claims()] == [1, 4]
    assert bench.changes.identity.task_types == ("both", "new")
    # One that still runs in its old worker is tried again by its own rule.
    assert bench.changes.retry("old") == OLD["old"].retry
    assert bench.changes.retry("unknown") == Retry()
    [(_, fields)] = [event for event in bench.observer.events if event[0] == "reloaded"]
    assert (fields["added"], fields["removed"]) == (["new"], ["old"])


async def test_a_reload_that_fails_changes_nothing() -> None:
    bench = Bench()
    bench.pool.error = AppError("cannot import a: no")
    bench.pool.error.details = "Traceback"
    bench.backlog.push([claim(3, "old")])
    async with bench.running():
        bench.changes.reload()
        await eventually_async(lambda: "reload_failed" in bench.observer.names())
    assert bench.observer.events[-1] == ("reload_failed", {"error": "cannot import a: no", "traceback": "Traceback"})
    assert not bench.exchange.served
    assert not bench.given_back
    assert bench.changes.identity.task_types == ("both", "old")


@pytest.mark.parametrize("error", [DatabaseError("away"), LeaseLostError()])
async def test_a_claim_that_is_lost_meanwhile_is_no_failure_of_the_reload(error: Exception) -> None:
    bench = Bench()
    bench.exchange.quiet.errors = [error, error]
    async with bench.running():
        bench.changes.reload()
        await eventually_async(lambda: "reloaded" in bench.observer.names())
    assert bench.exchange.served == [["both", "new"]]
    assert bench.pool.loads == 1


async def test_one_that_waits_for_a_claim_is_dropped_by_a_drain() -> None:
    bench = Bench()
    async with bench.exchange.quiet, bench.running():
        bench.changes.reload()
        await eventually_async(lambda: bench.pool.loads == 1)
        await asyncio.sleep(0)
    assert bench.pool.task_types is OLD


class Row:
    """The row of a supervisor."""

    def __init__(self) -> None:
        self.told: list[Identity] = []
        self.taken: list[int | None] = []
        self.error: Exception | None = None

    async def announce(self, supervisor_id: int, identity: Identity, taken: int | None) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(identity)
        self.taken.append(taken)


async def test_the_row_is_told_of_changes_and_of_nothing_else() -> None:
    bench, row = Bench(), Row()
    woken: list[Any] = []
    bench.changes.on_change = lambda: woken.append(1)
    bench.changes.told = bench.changes.identity
    announcer = Announcer(row, bench.changes, supervisor_id=7)  # type: ignore[arg-type]
    await announcer.turn()
    assert row.told == []
    async with bench.running():
        bench.changes.step(1)
        row.error = DatabaseError("away")
        with pytest.raises(DatabaseError):
            await announcer.turn()
        row.error = None
        await announcer.turn()
        await announcer.turn()
    assert [identity.processes for identity in row.told] == [3]
    assert woken == [1]
    assert row.taken == [None]


async def test_a_number_that_the_row_asks_for_is_answered_and_a_later_signal_counts() -> None:
    bench, row = Bench(), Row()
    bench.changes.told = bench.changes.identity
    announcer = Announcer(row, bench.changes, supervisor_id=7)  # type: ignore[arg-type]
    bench.changes.take(9)
    assert bench.changes.taken is None, "it does not run yet, and is asked again by the next renewal"
    async with bench.running():
        bench.changes.take(2)
        await announcer.turn()
        bench.changes.take(5)
        bench.changes.step(1)
        await announcer.turn()
        await announcer.turn()
    assert bench.pool.sizes == [5, 6]
    assert [identity.processes for identity in row.told] == [2, 6]
    assert row.taken == [2, 5]


async def test_what_changes_while_the_row_is_told_is_told_next() -> None:
    bench, row = Bench(), Row()
    bench.changes.told = bench.changes.identity
    announcer = Announcer(row, bench.changes, supervisor_id=7)  # type: ignore[arg-type]
    plain = row.announce

    async def announce(supervisor_id: int, identity: Identity, taken: int | None) -> None:
        if not row.told:
            bench.changes.step(1)
        await plain(supervisor_id, identity, taken)

    row.announce = announce  # type: ignore[method-assign]
    async with bench.running():
        bench.changes.take(3)
        await announcer.turn()
    assert [identity.processes for identity in row.told] == [3, 4]
    assert row.taken == [3, None]


async def test_a_number_that_is_asked_for_while_the_row_is_told_is_answered_though_it_changes_nothing() -> None:
    bench, row = Bench(), Row()
    bench.changes.told = bench.changes.identity
    announcer = Announcer(row, bench.changes, supervisor_id=7)  # type: ignore[arg-type]
    plain = row.announce

    async def announce(supervisor_id: int, identity: Identity, taken: int | None) -> None:
        await plain(supervisor_id, identity, taken)
        if len(row.told) == 1:
            bench.changes.taken = 4

    row.announce = announce  # type: ignore[method-assign]
    async with bench.running():
        bench.changes.take(3)
        await announcer.turn()
    assert row.taken == [3, 4]
