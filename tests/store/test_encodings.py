"""Databases that are not in UTF8: what they cannot store is written in ASCII, and what is no text can be read."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgsched.model import Failure, Verdict
from pgsched.store.schema import migrate
from tests.store.desk import Bound, Supervisor, Table, completed, failed, released, retry, supervisor
from tests.support import Server


@pytest.fixture
def encoded(server: Server) -> Iterator[Callable[[str], str]]:
    """Makes databases with the schema in an encoding, and returns the DSN."""
    made = []

    def make(encoding: str) -> str:
        made.append(server.create("template0", f"ENCODING '{encoding}' LOCALE 'C'"))
        migrate(made[-1])
        return made[-1]

    yield make
    for dsn in made:
        server.drop(dsn)


async def settled(me: Supervisor, make: Callable[..., Verdict], failure: Failure) -> Verdict:
    """Claim a task and settle it with this failure."""
    [claim] = await me.claim()
    verdict = make(claim)._replace(failure=failure)
    assert await me.settle(verdict) == [True]
    return verdict


@pytest.mark.parametrize("field", ["error", "traceback", "stderr", "stack"])
@pytest.mark.parametrize(("make", "status"), [(failed, "failed"), (retry, "queued"), (released, "queued")])
async def test_f56_what_the_encoding_lacks_is_written_in_ascii_and_the_verdict_stays(
    encoded: Callable[[str], str], make: Callable[..., Verdict], status: str, field: str
) -> None:
    dsn = encoded("LATIN1")
    texts: dict[str, Any] = {"error": "ValueError: no", field: "from a → b, \0"}
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        table = Table(connection)
        table.insert()
        async with supervisor(dsn) as me:
            verdict = await settled(me, make, Failure(**texts))
        row = table.row(verdict.claim.task_id)
        stored = [getattr(failure, field) for failure in table.failures(verdict.claim.task_id)]
    assert (row.status, row.retry_count) == (status, int(make is retry))
    assert stored == ([] if make is released else [r"from a \u2192 b, \ufffd"])


async def test_f56_what_the_encoding_has_is_written_as_it_is(encoded: Callable[[str], str]) -> None:
    dsn = encoded("LATIN1")
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        table = Table(connection)
        table.insert()
        async with supervisor(dsn) as me:
            verdict = await settled(me, failed, Failure(error="café"))
        assert table.row(verdict.claim.task_id).error_log == "café"


async def test_f56_a_result_that_the_encoding_lacks_fails_its_task_and_no_other(encoded: Callable[[str], str]) -> None:
    dsn = encoded("LATIN1")
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
        table = Table(connection)
        table.insert(2)
        async with supervisor(dsn) as me:
            good, bad = await me.claim()
            assert await me.settle(completed(good, '"é"'), completed(bad, '"→"')) == [True, True]
        assert [table.row(claim.task_id).status for claim in (good, bad)] == ["completed", "failed"]
        assert table.row(bad.task_id).error_log.isascii()


async def test_f56_what_is_no_text_is_left_and_holds_up_no_other(encoded: Callable[[str], str], bound: Bound) -> None:
    """A SQL_ASCII database takes any bytes, and refuses to hand them out as UTF-8: before it commits, not after."""
    dsn = encoded("SQL_ASCII")
    with psycopg.connect(dsn, autocommit=True, client_encoding="SQL_ASCII") as connection:
        table = Table(connection)
        table.insert(3)
        connection.execute(
            b"INSERT INTO scheduled_tasks (task_type, run_at, payload) VALUES ('a', now(), '{\"name\": \"caf\xe9\"}')"
        )
        async with supervisor(dsn, partitions=bound) as me:
            claims = await me.claim()
        processing = table.sql("SELECT id FROM scheduled_tasks WHERE status = 'processing' ORDER BY id")
    assert [(claim.task_id,) for claim in claims] == processing
    assert len(claims) == 3
