"""A pool under test, and what must hold after every test of the process side.

:class:`Harness` plays the supervisor: it dispatches claims and keeps the outcomes. The loop is the test's own.
"""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pgsched.model import Claim, Outcome, OutcomeKind
from pgsched.pool.pool import Ended, Pool, PoolSettings
from tests.support import PATIENCE, ROOT, eventually, eventually_async, processes

APP = "tests.pool.tasks:app"


class Harness:
    """A pool, the claims that it was given, and what became of them."""

    def __init__(self, **settings: Any) -> None:
        environment = {"PYTHONPATH": str(ROOT), **settings.pop("environment", {})}
        self.settings = PoolSettings(
            **{"app": APP, "processes": 1, "grace": 1.0, "environment": environment, **settings}
        )
        self.pool = Pool(self.settings, self._on_outcomes, self._on_event)
        self.outcomes: dict[int, Outcome] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.dispatched: dict[int, Claim] = {}
        self.recalled: list[Claim] = []
        self.react: Callable[[Claim, Outcome], None] = lambda claim, outcome: None
        self._ids = itertools.count(2**40 + 1)

    def claim(self, task_type: str, payload: str = "{}", **fields: Any) -> Claim:
        claim = Claim(next(self._ids), 7, task_type, "default", 0, payload, 0, 3, None, 0.25, "2026-01-01 00:00:00+00")
        return claim._replace(**fields)

    def dispatch(self, claim: Claim, ahead: int = 0) -> bool:
        done = self.pool.dispatch(claim, ahead) and claim not in self.pool.flush()
        if done:
            assert claim.task_id not in self.dispatched
            self.dispatched[claim.task_id] = claim
        return done

    def start(self, task_type: str, payload: str = "{}", ahead: int = 0, **fields: Any) -> int:
        """Dispatch now; the task's id."""
        claim = self.claim(task_type, payload, **fields)
        assert self.dispatch(claim, ahead), f"no slot: {self.pool.slots()}"
        return claim.task_id

    async def free(self, count: int = 1, timeout: float = PATIENCE) -> None:
        await eventually_async(lambda: self.pool.free() >= count, "a free slot", timeout=timeout)

    async def outcome(self, task_id: int, timeout: float = PATIENCE) -> Outcome:
        await eventually_async(lambda: task_id in self.outcomes, "an outcome", timeout=timeout, every=0.002)
        return self.outcomes[task_id]

    async def run(self, task_type: str, payload: str = "{}", timeout: float = PATIENCE, **fields: Any) -> Outcome:
        """Wait for a slot, run a task in it, and wait for its outcome."""
        await self.free(timeout=timeout)
        return await self.outcome(self.start(task_type, payload, **fields), timeout)

    async def value(self, task_type: str, payload: str = "{}", **fields: Any) -> str | None:
        outcome = await self.run(task_type, payload, **fields)
        assert outcome.kind is OutcomeKind.RETURNED, outcome
        return outcome.result

    async def reload(self) -> None:
        """Import the app anew and put it into service; the workers follow one by one."""
        async with self.pool.reload() as adopt:
            adopt()

    def recall(self, slot: int | None = None) -> list[Claim]:
        claims = self.pool.recall(slot)
        for claim in claims:
            del self.dispatched[claim.task_id]
        self.recalled += claims
        return claims

    def worker(self, slot: int = 0) -> int:
        """The pid of a slot's worker."""
        process = self.pool._workers.slots[slot].process
        assert process is not None
        assert process.pid is not None
        return process.pid

    def workers(self) -> list[int]:
        found = [slot.process for slot in self.pool._workers.slots.values()]
        return [process.pid for process in found if process is not None and process.pid is not None]

    @property
    def forkserver(self) -> int:
        pid = self.pool._workers.filler._keeper.pid
        assert pid is not None
        return pid

    def said(self, name: str) -> list[dict[str, Any]]:
        """The fields of the events with that name."""
        return [fields for event, fields in self.events if event == name]

    def died(self, count: int) -> bool:
        """Whether so many workers have ended."""
        return self.pool.restarts.total() >= count

    def _on_outcomes(self, ended: list[Ended]) -> None:
        for claim, outcome in ended:
            assert self.dispatched.get(claim.task_id) == claim, f"an outcome for what was not dispatched: {claim}"
            assert claim.task_id not in self.outcomes, f"a second outcome for {claim}: {outcome}"
            self.outcomes[claim.task_id] = outcome
            self.react(claim, outcome)

    def _on_event(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))


@asynccontextmanager
async def started(harness: Harness) -> AsyncIterator[Harness]:
    """Its pool started; after it, every claim must have had its one outcome."""
    await harness.pool.start()
    try:
        yield harness
    finally:
        await harness.pool.stop()
    assert set(harness.outcomes) == set(harness.dispatched), "a claim without an outcome"


@asynccontextmanager
async def pooled(**settings: Any) -> AsyncIterator[Harness]:
    """A started pool with these settings."""
    async with started(Harness(**settings)) as harness:
        yield harness


def app_in(directory: Path, source: str, **settings: Any) -> Harness:
    """A pool of an app that is written for the test."""
    (directory / "written.py").write_text(f"from pgsched.app import App\n{source}\n")
    path = os.pathsep.join([str(directory), str(ROOT)])
    return Harness(**{"app": "written:app", "environment": {"PYTHONPATH": path}, **settings})


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool finds a report in a worker's memory only when the worker is dead: no test dispatches into its end."""
    monkeypatch.setattr("pgsched.pool.workers.TICK", 3600.0)


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return {entry for entry in found if not entry.endswith("/fd")}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No child, no zombie and no descriptor is left by a test."""
    descriptors = len(_descriptors())
    before = {found.pid for found in processes() if found.parent == os.getpid()}
    yield
    left = eventually_gone(lambda: {found for found in processes() if found.parent == os.getpid()}, before)
    assert not left, f"left behind: {left}"
    assert len(_descriptors()) <= descriptors, f"descriptors left behind: {_descriptors()}"


def eventually_gone(children: Callable[[], set[Any]], before: set[int]) -> list[Any]:
    def new() -> list[Any]:
        return [found for found in children() if found.pid not in before]

    try:
        eventually(lambda: not new())
    except AssertionError:
        return new()
    return []
