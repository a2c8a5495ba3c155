"""Threads that nobody waits for: what comes back of a call, and what a call that never ends holds up."""

import asyncio
import threading
import time

import pytest

from pgsched.cli.threads import MOST, LooseThreads


def test_a_call_that_never_ends_does_not_hold_the_loop() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(LooseThreads())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.to_thread(time.sleep, 600)

    began = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began < 10


def test_what_a_call_returns_or_raises_comes_back() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(LooseThreads())
        assert await asyncio.to_thread(sum, [1, 2], start=3) == 6
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.to_thread(int, "x")
        assert await asyncio.gather(*(asyncio.to_thread(abs, -n) for n in range(3 * MOST))) == list(range(3 * MOST))

    asyncio.run(scenario())


def test_no_more_threads_than_that() -> None:
    threads, go, before = LooseThreads(), threading.Event(), set(threading.enumerate())
    running = [threads.submit(go.wait, 30) for _ in range(MOST)]
    dropped = threads.submit(abs, -2)
    late = threads.submit(abs, -1)
    assert dropped.cancel()
    assert len(set(threading.enumerate()) - before) == MOST
    go.set()
    assert all(future.result(30) for future in running)
    assert late.result(30) == 1
    assert dropped.cancelled()


def test_what_waits_at_the_end_is_not_begun() -> None:
    threads, go = LooseThreads(), threading.Event()
    running = [threads.submit(go.wait, 30) for _ in range(MOST)]
    late = threads.submit(abs, -1)
    threads.shutdown()
    assert late.cancelled()
    go.set()
    assert all(future.result(30) for future in running)


def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = LooseThreads()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(MOST + 1):
            with pytest.raises(RuntimeError):
                threads.submit(abs, -1)
    assert threads.submit(abs, -2).result(30) == 2
