"""Workers written after the article, in any language, share the table with our supervisors.

Their statements stand in ``tests/article/``, to the letter (snippets 2, 5 and 7), and are run as they are.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgsched.model import Want
from tests.article import text
from tests.store.desk import WANT, Table, completed, supervisor

Connect = Callable[..., psycopg.Connection]
CLAIM, CLAIM_IN_NAMESPACE, COMPLETE, FAIL, REAP = (
    text(name).encode()
    for name in ("snippet_2", "snippet_5_claim", "snippet_5_complete", "snippet_5_fail", "snippet_7")
)
LONG_AGO = "UPDATE scheduled_tasks SET updated_at = now() - interval '6 minutes' WHERE id = ANY (%s)"


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


class Worker:
    """A claimer that knows nothing but the article."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._cursor = psycopg.RawCursor(connection)

    def claim(self) -> int | None:
        row = self._cursor.execute(CLAIM_IN_NAMESPACE, (1337,)).fetchone()
        return row[0] if row else None

    def complete(self, task_id: int) -> None:
        self._cursor.execute(COMPLETE, (task_id,))

    def fail(self, task_id: int, error: str) -> None:
        self._cursor.execute(FAIL, (task_id, error))

    def reap(self) -> int:
        return self._cursor.execute(REAP).rowcount


@pytest.fixture
def worker(connect: Connect) -> Worker:
    return Worker(connect())


def test_its_claim_and_completion(table: Table, connect: Connect, worker: Worker) -> None:
    newer, older = table.insert(2, run_at="now() - interval '1 minute' * i", payload='{"x": 1}')
    table.insert(run_at="now() + interval '1 hour'")
    assert connect().execute(CLAIM).fetchall() == [(older, "a", {"x": 1}, 0)]
    assert table.row(older).status == "processing"
    worker.complete(older)
    assert table.row(older).status == "completed"
    assert worker.claim() == newer
    assert worker.claim() is None


def test_its_failure(table: Table, worker: Worker) -> None:
    [task_id] = table.insert(max_retries=1)
    assert worker.claim() == task_id
    worker.fail(task_id, "no")
    row = table.row(task_id)
    assert (row.status, row.retry_count, row.error_log) == ("queued", 1, "no")
    assert worker.claim() is None
    table.sql("UPDATE scheduled_tasks SET run_at = now()")
    assert worker.claim() == task_id
    worker.fail(task_id, "no again")
    assert table.row(task_id).status == "failed"


async def test_what_it_has_put_back_is_ours_to_claim(dsn: str, table: Table, worker: Worker) -> None:
    [task_id] = table.insert()
    worker.claim()
    worker.fail(task_id, "no")
    table.sql("UPDATE scheduled_tasks SET run_at = now()")
    async with supervisor(dsn) as me:
        [claim] = await me.claim()
        assert (claim.task_id, claim.retry_count, claim.fence) == (task_id, 1, 1)
        assert await me.settle(completed(claim)) == [True]


async def test_its_reaper_leaves_a_living_supervisors_claims_alone(dsn: str, table: Table, worker: Worker) -> None:
    ids = table.insert(3)
    async with supervisor(dsn) as me:
        claims = await me.claim()
        assert worker.reap() == 0
        table.sql(LONG_AGO, ids)
        # The supervisor confirms what runs for long every second, so that no row ever gets that old.
        assert len(await me.store.confirm(me.id, [(claim.task_id, claim.fence) for claim in claims])) == 3
        assert worker.reap() == 0
        assert await me.settle(*map(completed, claims)) == [True] * 3


async def test_a_late_settle_after_its_reaper_and_its_claimer_is_refused(
    dsn: str, table: Table, worker: Worker
) -> None:
    [task_id] = table.insert()
    async with supervisor(dsn) as late, supervisor(dsn) as me:
        [claim] = await late.claim()
        table.expire(late.id, "6 minutes")
        assert worker.reap() == 1
        assert table.row(task_id).retry_count == 1
        assert worker.claim() == task_id
        # The row looks like the late one's own: processing, its fence, its name. Only its lease tells.
        row = table.row(task_id)
        assert (row.status, row.fence, row.claimed_by) == ("processing", claim.fence, late.id)
        answer = await late.exchange([completed(claim, '"late"')], [], 0)
        assert (answer.settled, answer.lease_alive) == ([False], False)
        # Nor does our reaper take it from the worker that has it now.
        assert await me.store.reap(me.id, 10) == []
        worker.complete(task_id)
        assert (table.row(task_id).status, table.row(task_id).result) == ("completed", None)


async def test_a_worker_that_vanished_is_reaped_by_us_after_its_five_minutes(
    dsn: str, table: Table, worker: Worker
) -> None:
    ids = table.insert(2)
    assert [worker.claim(), worker.claim()] == ids
    async with supervisor(dsn) as me:
        assert await me.store.reap(me.id, 10) == []
        table.sql(LONG_AGO, ids[:1])
        [claim] = await me.store.reap(me.id, 10)
        assert (claim.task_id, claim.fence) == (ids[0], 1)
        assert await me.settle(completed(claim)) == [True]


class Rivals:
    """Threads that claim and complete after the article until the table is empty."""

    def __init__(self, connect: Connect, count: int, done: Counter[int]) -> None:
        self._done = done
        self._lock = threading.Lock()
        self._ready = threading.Barrier(count + 1)
        self._errors: list[Exception] = []
        self.claims = 0
        connections = [connect() for _ in range(count)]
        self._threads = [threading.Thread(target=self._work, args=(Worker(each),)) for each in connections]
        for thread in self._threads:
            thread.start()

    def go(self) -> None:
        self._ready.wait(30)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(30)
        assert self._errors == []

    def _work(self, worker: Worker) -> None:
        self._ready.wait(30)
        empty = 0
        while empty < 3:
            try:
                task_id = worker.claim()
                if task_id is None:
                    empty += 1
                    time.sleep(0.01)  # The article's own poll interval, not a wait of this test.
                    continue
                with self._lock:
                    self._done[task_id] += 1
                    self.claims += 1
                worker.complete(task_id)
                empty = 0
            except psycopg.errors.SerializationFailure:
                # A row that another worker has just completed has moved; the article's loop polls again.
                continue
            except Exception as error:
                self._errors.append(error)
                return


async def test_each_of_2000_tasks_is_executed_once(dsn: str, table: Table, connect: Connect) -> None:
    rows = 2000
    table.insert(rows // 2)
    table.insert(rows // 2, priority=5)
    wants = [Want("a", "default", 5, 20), WANT._replace(quota=20)]
    done: Counter[int] = Counter()
    rivals = Rivals(connect, 3, done)

    async def work() -> int:
        claimed = 0
        async with supervisor(dsn) as me:
            verdicts: list[Any] = []
            empty = 0
            while empty < 3 or verdicts:
                answer = await me.exchange(verdicts, wants, 20)
                assert all(answer.settled)
                done.update(claim.task_id for claim in answer.claims)
                claimed += len(answer.claims)
                verdicts = [completed(claim) for claim in answer.claims]
                empty = 0 if answer.claims else empty + 1
        return claimed

    started = [asyncio.create_task(work()) for _ in range(2)]
    await asyncio.to_thread(rivals.go)
    ours = sum(await asyncio.gather(*started))
    await asyncio.to_thread(rivals.end)
    assert table.statuses() == {"completed": rows}
    assert len(done) == rows
    assert set(done.values()) == {1}
    assert ours > 0
    assert rivals.claims > 0
    assert ours + rivals.claims == rows
