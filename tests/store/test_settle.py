"""Settle: what each verdict writes, what is fenced, and what a value that PostgreSQL refuses costs."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgsched.errors import DatabaseError
from pgsched.model import Claim, Failure, OutcomeKind, Verdict
from pgsched.store.exchanging import Exchanged
from tests.proxy import Proxy
from tests.store.desk import (
    FAILURE,
    KINDS,
    WANT,
    Bound,
    Supervisor,
    Table,
    completed,
    failed,
    released,
    retry,
    supervisor,
)

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


async def claimed(me: Supervisor, table: Table, count: int = 1, **columns: Any) -> list[Claim]:
    table.insert(count, **columns)
    claims = await me.claim()
    assert len(claims) == count
    return claims


class TestVerdicts:
    async def test_completed(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table, error_log="an earlier attempt's", created_at="2020-01-01Z")
            assert await me.settle(completed(claim, '{"a": "q\\"uo\\\\te"}', seconds=2.5)) == [True]
            row = table.row(claim.task_id)
        assert (row.status, row.fence, row.retry_count, row.claimed_by) == ("completed", 1, 0, me.id)
        assert row.result == {"a": 'q"uo\\te'}
        assert row.error_log is None
        assert (row.finished_at - row.started_at).total_seconds() == 2.5
        assert row.updated_at == row.finished_at
        assert table.failures(claim.task_id) == []

    async def test_every_other_column_survives_the_move(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(
                me, table, payload='{"x": [1, 2]}', max_retries=9, retry_count=4, timeout=1.5, unique_key="k"
            )
            before = table.row(claim.task_id)._asdict()
            await me.settle(completed(claim))
            after = table.row(claim.task_id)._asdict()
        changed = {name for name in after if after[name] != before[name]}
        assert changed <= {"status", "updated_at", "finished_at", "started_at"}
        assert {"status", "finished_at"} <= changed

    async def test_a_task_that_returned_none_has_no_result(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            first, second, third = await claimed(me, table, 3)
            assert await me.settle(completed(first), completed(second, "0"), completed(third, "null")) == [True] * 3
            results = [
                table.sql("SELECT result::text FROM scheduled_tasks WHERE id = %s", c.task_id)
                for c in (first, second, third)
            ]
        assert results == [[(None,)], [("0",)], [("null",)]]

    async def test_failed(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table, retry_count=3)
            assert await me.settle(failed(claim)) == [True]
            row = table.row(claim.task_id)
            [failure] = table.failures(claim.task_id)
        assert (row.status, row.retry_count, row.error_log, row.claimed_by) == ("failed", 3, FAILURE.error, me.id)
        assert row.finished_at is not None
        assert (failure.attempt, failure.fence, failure.task_type, failure.outcome) == (4, 1, "a", "raised")
        assert (failure.error, failure.traceback, failure.seconds) == (FAILURE.error, FAILURE.traceback, 0.25)
        assert (failure.exit_code, failure.cpu_seconds, failure.peak_memory) == (None, 0.5, 2**40)
        assert failure.supervisor == me.id

    async def test_retry(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            assert await me.settle(retry(claim, delay=30.5)) == [True]
            row = table.row(claim.task_id)
            assert (row.status, row.retry_count, row.fence) == ("queued", 1, 1)
            assert (row.claimed_by, row.started_at, row.finished_at) == (None, None, None)
            assert row.error_log == FAILURE.error
            assert (row.run_at - row.updated_at).total_seconds() == 30.5
            assert [f.outcome for f in table.failures(claim.task_id)] == ["crashed"]
            assert await me.claim() == []
            table.sql("UPDATE scheduled_tasks SET run_at = now()")
            [second] = await me.claim()
            assert (second.fence, second.attempt) == (2, 2)

    async def test_released(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table, error_log="kept", retry_count=2)
            before = table.row(claim.task_id)
            assert await me.settle(released(claim)._replace(failure=FAILURE)) == [True]
            row = table.row(claim.task_id)
            assert (row.status, row.retry_count, row.fence) == ("queued", 2, 2)
            assert (row.claimed_by, row.started_at, row.run_at) == (None, None, before.run_at)
            assert row.error_log == "kept"
            assert table.failures(claim.task_id) == []
            assert [c.fence for c in await me.claim()] == [3]

    async def test_a_mixed_batch_in_any_order_and_a_claim_with_it(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            claims = await claimed(me, table, 8)
            fresh = table.insert(3)
            kinds: tuple[Callable[[Claim], Verdict], ...] = (completed, retry, failed, released)
            verdicts = [kinds[i % 4](claim) for i, claim in enumerate(claims)][::-1]
            fenced = completed(claims[0]._replace(fence=9))
            answer = await me.exchange([*verdicts[:4], fenced, *verdicts[4:]], [WANT], 100)
            assert answer.settled == [True] * 4 + [False] + [True] * 4
            # The claim sees what the settle has just given back.
            given_back = [claim.task_id for claim in claims[3::4]]
            assert [claim.task_id for claim in answer.claims] == given_back + fresh
            statuses = {claim.task_id: table.row(claim.task_id).status for claim in claims}
        assert list(statuses.values()) == ["completed", "queued", "failed", "processing"] * 2

    async def test_started_at_is_never_before_created_at(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            await me.settle(completed(claim, seconds=1e6))
            row = table.row(claim.task_id)
        assert row.created_at == row.started_at <= row.finished_at


class TestPlaces:
    """A claim says where it has left the row."""

    async def test_a_row_that_was_updated_since_is_settled_all_the_same(
        self, dsn: str, table: Table, bound: Bound
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            claims = await claimed(me, table, 6)
            table.insert()
            table.sql("UPDATE scheduled_tasks SET error_log = 'x' WHERE id % 2 = 0")
            fenced = completed(claims[0]._replace(fence=9))
            answer = await me.exchange([*map(completed, claims), fenced], [WANT], 10)
            assert answer.settled == [True] * 6 + [False]
            assert len(answer.claims) == 1
            assert all(table.row(claim.task_id).error_log is None for claim in claims)
        assert table.statuses() == {"completed": 6, "processing": 1}

    async def test_what_is_locked_there_costs_no_claim_and_is_to_be_sent_again(
        self, dsn: str, table: Table, bound: Bound, connect: Connect
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            first, locked = await claimed(me, table, 2)
            [later] = table.insert()
            table.sql("UPDATE scheduled_tasks SET error_log = 'x' WHERE id = %s", locked.task_id)
            holder = connect(autocommit=False)
            holder.execute("SELECT FROM scheduled_tasks WHERE id = %s FOR UPDATE", [locked.task_id])
            answer = await me.exchange([completed(first), completed(locked)], [WANT], 10)
            assert ([claim.task_id for claim in answer.claims], answer.unsure) == ([later], [1])
            assert answer.settled[0]
            holder.rollback()
            assert await me.settle(completed(locked), resent=True) == [True]
        assert table.statuses() == {"completed": 2, "processing": 1}

    async def test_what_is_refused_there_costs_no_claim(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [first, bad] = await claimed(me, table, 2)
            table.insert()
            trigger(
                table, f"IF NEW.id = {bad.task_id} AND NEW.result IS NOT NULL THEN RAISE EXCEPTION 'never'; END IF;"
            )
            table.sql("UPDATE scheduled_tasks SET error_log = 'x' WHERE id = %s", bad.task_id)
            answer = await me.exchange([completed(first, "1"), completed(bad, "2")], [WANT], 10)
            assert (answer.settled, len(answer.claims)) == ([True, True], 1)
        assert table.statuses() == {"completed": 1, "failed": 1, "processing": 1}

    async def test_another_row_in_that_place_is_not_taken_for_it(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            first, second = await claimed(me, table, 2)
            swapped = [first._replace(place=second.place), second._replace(place=first.place)]
            assert await me.settle(completed(swapped[0], "1"), completed(swapped[1], "2")) == [True, True]
            assert [table.row(claim.task_id).result for claim in (first, second)] == [1, 2]

    async def test_results_of_few_or_none(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            claims = await claimed(me, table, 4)
            nowhere = completed(claims[3]._replace(place=None), "4")
            verdicts = [completed(claims[2]), completed(claims[0], "1"), nowhere, completed(claims[1])]
            assert await me.settle(*verdicts) == [True] * 4
            assert [table.row(claim.task_id).result for claim in claims] == [1, None, None, 4]


class TestFences:
    async def test_nothing_is_settled_twice(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            for verdict in KINDS:
                [claim] = await claimed(me, table)
                assert await me.settle(verdict(claim)) == [True]
                before = table.row(claim.task_id)
                for late in KINDS:
                    assert await me.settle(late(claim)) == [False]
                assert table.row(claim.task_id) == before
                table.sql("DELETE FROM scheduled_tasks")

    @pytest.mark.parametrize("verdict", KINDS)
    async def test_a_stale_fence_changes_nothing(
        self, dsn: str, table: Table, verdict: Callable[[Claim], Verdict], bound: Bound
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [first] = await claimed(me, table)
            await me.settle(released(first))
            [second] = await me.claim()
            before = table.row(first.task_id)
            assert await me.settle(verdict(first)) == [False]
            assert table.row(first.task_id) == before
            assert await me.settle(verdict(second)) == [True]

    @pytest.mark.parametrize("verdict", KINDS)
    async def test_another_supervisors_claim_cannot_be_settled(
        self, dsn: str, table: Table, verdict: Callable[[Claim], Verdict], bound: Bound
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me, supervisor(dsn, partitions=bound) as other:
            [claim] = await claimed(me, table)
            before = table.row(claim.task_id)
            assert await other.settle(verdict(claim)) == [False]
            assert table.row(claim.task_id) == before
            assert await me.settle(verdict(claim)) == [True]

    @pytest.mark.parametrize("verdict", KINDS)
    async def test_what_somebody_has_queued_again_cannot_be_settled(
        self, dsn: str, table: Table, verdict: Callable[[Claim], Verdict], bound: Bound
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            # As the article's reaper does: neither the fence nor the owner changes.
            table.sql("UPDATE scheduled_tasks SET status = 'queued'")
            before = table.row(claim.task_id)
            assert await me.settle(verdict(claim)) == [False]
            assert table.row(claim.task_id) == before

    async def test_a_lease_that_ran_out_settles_nothing(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            claims = await claimed(me, table, 2)
            table.expire(me.id)
            answer = await me.exchange([completed(claims[0]), retry(claims[1])], [], 0)
            assert (answer.settled, answer.lease_alive) == ([False, False], False)
            answer = await me.exchange([completed(claims[0])], [WANT], 10, resent=True)
            assert (answer.settled, answer.lease_alive) == ([False], False)
        assert table.statuses() == {"processing": 2}
        assert table.sql("SELECT count(*) FROM pgsched_failures") == [(0,)]

    async def test_a_lease_that_ran_out_settles_nothing_where_the_row_lies(
        self, dsn: str, table: Table, bound: Bound
    ) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            # The row itself is untouched since its claim.
            table.sql("UPDATE pgsched_supervisors SET lease_until = now() - interval '1 second'")
            answer = await me.exchange([completed(claim)], [], 0)
            assert (answer.settled, answer.lease_alive) == ([False], False)
        assert table.statuses() == {"processing": 1}

    async def test_a_fence_is_compared_where_the_row_lies(self, dsn: str, table: Table, bound: Bound) -> None:
        """A later version of the same row may lie where the claim has left an earlier one."""
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            assert await me.settle(completed(claim._replace(fence=2))) == [False]
            assert await me.settle(completed(claim)) == [True]

    async def test_a_status_is_compared_where_the_row_lies(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            [(place,)] = table.sql("UPDATE scheduled_tasks_live SET status = 'queued' RETURNING ctid::text")
            assert await me.settle(completed(claim._replace(place=place))) == [False]
        assert table.statuses() == {"queued": 1}

    async def test_a_fenced_verdict_leaves_no_failure(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            assert await me.settle(failed(claim._replace(fence=7))) == [False]
            assert table.failures(claim.task_id) == []

    async def test_a_task_that_is_gone_is_fenced(self, dsn: str, table: Table, bound: Bound) -> None:
        async with supervisor(dsn, partitions=bound) as me:
            [claim] = await claimed(me, table)
            table.sql("DELETE FROM scheduled_tasks")
            assert await me.settle(completed(claim)) == [False]


class TestRefusedData:
    @pytest.mark.parametrize(
        "result",
        [
            '{"v": "\\u0000"}',
            '{"\\u0000": 1}',
            '["\\ud800"]',
            "NaN",
            '{"a": 1e1000000}',
            "{",
            "\0",
            "\ud800",
            "[" * 100_000 + "]" * 100_000,
        ],
        ids=["NUL", "NUL key", "surrogate", "NaN", "huge number", "cut", "raw NUL", "raw surrogate", "deep"],
    )
    async def test_f43_f45_f46_a_bad_result_fails_its_task_and_no_other(
        self, dsn: str, table: Table, result: str
    ) -> None:
        async with supervisor(dsn) as me:
            before, bad, after = await claimed(me, table, 3)
            table.insert()
            answer = await me.exchange(
                [completed(before, "1"), completed(bad, result), completed(after, "2")], [WANT], 10
            )
            assert answer.settled == [True, True, True]
            assert answer.lease_alive
            assert table.row(before.task_id).result == 1
            assert table.row(after.task_id).result == 2
            row = table.row(bad.task_id)
            [failure] = table.failures(bad.task_id)
            assert len(await me.claim()) + len(answer.claims) == 1
        assert (row.status, row.result, row.retry_count) == ("failed", None, 0)
        assert row.error_log.startswith("result not storable: ")
        assert "\n" not in row.error_log
        assert failure.error == row.error_log
        assert failure.outcome == "raised"

    async def test_f43_f45_texts_are_stored_with_a_replacement(self, dsn: str, table: Table) -> None:
        text = "a\0b\ud800c"
        failure = Failure(error=text, traceback=text, stderr=text, stack=text)
        async with supervisor(dsn) as me:
            first, second = await claimed(me, table, 2)
            assert await me.settle(failed(first, failure), retry(second, failure=failure)) == [True, True]
            for claim in (first, second):
                assert table.row(claim.task_id).error_log == "a\ufffdb\ufffdc"
                [stored] = table.failures(claim.task_id)
                assert {stored.error, stored.traceback, stored.stderr, stored.stack} == {"a\ufffdb\ufffdc"}

    async def test_everything_that_a_failure_can_say_is_kept(self, dsn: str, table: Table) -> None:
        failure = Failure(
            error='E: "x", {y}\\',
            traceback="t\n\t",
            exit_code=-9,
            signal=9,
            out_of_memory=True,
            cpu_seconds=1.25,
            peak_memory=2**50,
            stderr="ümläut\n",
            stack="NULL",
        )
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            await me.settle(failed(claim, failure)._replace(outcome=OutcomeKind.OVER_MEMORY))
            [stored] = table.failures(claim.task_id)
        for name in Failure.__slots__:
            assert getattr(stored, name) == getattr(failure, name)
        assert stored.outcome == "over_memory"

    async def test_f07_large_results(self, dsn: str, table: Table) -> None:
        sizes = [1024, 65_535, 65_536, 1_048_576]
        async with supervisor(dsn) as me:
            claims = await claimed(me, table, len(sizes))
            verdicts = [completed(c, json.dumps("x" * size)) for c, size in zip(claims, sizes, strict=True)]
            assert await me.settle(*verdicts) == [True] * len(sizes)
            assert [len(table.row(claim.task_id).result) for claim in claims] == sizes

    async def test_f41_a_trigger_that_raises_once_costs_nothing(self, dsn: str, table: Table) -> None:
        table.sql("CREATE SEQUENCE times")
        trigger(table, "IF nextval('times') = 1 THEN RAISE EXCEPTION 'not now'; END IF;")
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            assert await me.settle(completed(claim, "5")) == [True]
            assert (table.row(claim.task_id).status, table.row(claim.task_id).result) == ("completed", 5)

    async def test_a_row_that_the_table_itself_refuses_holds_nobody_up(
        self, dsn: str, table: Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with supervisor(dsn) as me:
            first, bad, last = await claimed(me, table, 3)
            trigger(table, f"IF NEW.id = {bad.task_id} THEN RAISE EXCEPTION 'never'; END IF;")
            assert await me.settle(completed(first), completed(bad), completed(last)) == [True, False, True]
        assert table.statuses() == {"completed": 2, "processing": 1}
        assert [record.msg for record in caplog.records] == ["settle_refused"]

    async def test_a_failure_that_the_table_refuses_keeps_its_error(self, dsn: str, table: Table) -> None:
        table.sql("ALTER TABLE pgsched_failures ADD CHECK (traceback IS NULL)")
        async with supervisor(dsn) as me:
            for make in (failed, retry):
                [claim] = await claimed(me, table)
                assert await me.settle(make(claim, failure=FAILURE)) == [True]
                [stored] = table.failures(claim.task_id)
                row = table.row(claim.task_id)
                assert (row.status, row.error_log) == ("failed", stored.error)
                assert stored.error.startswith("ValueError: no (and not storable as it was: new row for relation")

    async def test_a_constraint_of_the_users_fails_the_task(self, dsn: str, table: Table) -> None:
        table.sql("ALTER TABLE scheduled_tasks ADD CHECK (result IS NULL OR jsonb_typeof(result) = 'object')")
        async with supervisor(dsn) as me:
            first, bad = await claimed(me, table, 2)
            assert await me.settle(completed(first, "{}"), completed(bad, "[]")) == [True, True]
            assert table.row(first.task_id).status == "completed"
            assert table.row(bad.task_id).status == "failed"


class TestWhatFollows:
    """What the server refuses after the exchange's own transaction does not make that one be tried again."""

    @pytest.mark.parametrize("refusal", ["out_of_memory", "program_limit_exceeded"])
    async def test_asking_for_what_an_earlier_try_has_written(self, dsn: str, table: Table, refusal: str) -> None:
        raising(table, refusal)
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            # Settles write failures as ever; only who reads them meets it.
            table.sql("ALTER TABLE pgsched_failures RENAME TO kept")
            table.sql("CREATE VIEW pgsched_failures AS SELECT * FROM kept WHERE (SELECT raising())")
            table.insert(4)
            answer = await me.exchange([retry(claim._replace(fence=7))], [WANT], 2, resent=True)
        assert (len(answer.claims), answer.unsure) == (2, [0])
        assert table.statuses() == {"processing": 3, "queued": 2}, "it has claimed twice"

    async def test_settling_what_is_not_where_its_claim_has_left_it(self, dsn: str, table: Table) -> None:
        raising(table, "out_of_memory")
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            table.sql("UPDATE scheduled_tasks SET updated_at = now()")
            trigger(table, "PERFORM raising();")
            table.insert(4)
            answer = await me.exchange([completed(claim)], [WANT], 2)
            with pytest.raises(DatabaseError):
                await me.settle(completed(claim))
        assert (len(answer.claims), answer.unsure) == (2, [0])
        assert table.statuses() == {"processing": 3, "queued": 2}, "it has claimed twice"

    async def test_settling_without_what_was_refused(self, dsn: str, table: Table) -> None:
        raising(table, "out_of_memory")
        async with supervisor(dsn) as me:
            [claim] = await claimed(me, table)
            trigger(table, "PERFORM raising();")
            with pytest.raises(DatabaseError, match="max_locks_per_transaction"):
                await me.settle(completed(claim, "{"))
        assert table.statuses() == {"processing": 1}


def raising(table: Table, condition: str) -> None:
    """Make a function for which the server has no memory, or some such."""
    table.sql(
        "CREATE FUNCTION raising() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION 'no' USING ERRCODE = '{condition}'; END $$"
    )


def trigger(table: Table, body: str) -> None:
    table.sql(f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$")
    table.sql("CREATE TRIGGER meddle BEFORE INSERT ON scheduled_tasks_ended FOR EACH ROW EXECUTE FUNCTION meddle()")


class TestAgain:
    """The reply to a settle was lost, so it is sent again."""

    @pytest.mark.parametrize("verdict", KINDS)
    async def test_what_was_written_counts_as_settled(
        self, dsn: str, proxy: Proxy, table: Table, verdict: Callable[[Claim], Verdict]
    ) -> None:
        async with supervisor(proxy.dsn) as me:
            claims = await claimed(me, table, 3)
            verdicts = [verdict(claim) for claim in claims]
            proxy.swallow()
            with pytest.raises(DatabaseError):
                await me.settle(*verdicts)
            before = [table.row(claim.task_id) for claim in claims]
            assert "processing" not in [row.status for row in before]
            strange = completed(claims[0]._replace(fence=99))
            assert await me.settle(*verdicts, strange, resent=True) == [True, True, True, False]
            assert [table.row(claim.task_id) for claim in claims] == before
            assert await me.settle(*verdicts) == [False, False, False]

    @pytest.mark.parametrize("verdict", [retry, released])
    async def test_even_if_somebody_has_claimed_the_row_since(
        self, dsn: str, table: Table, verdict: Callable[[Claim], Verdict]
    ) -> None:
        async with supervisor(dsn) as me, supervisor(dsn) as other:
            [claim] = await claimed(me, table)
            await me.settle(verdict(claim))
            table.sql("UPDATE scheduled_tasks SET run_at = now()")
            assert len(await other.claim()) == 1
            assert await me.settle(verdict(claim), resent=True) == [True]

    async def test_what_was_not_written_is_written_now(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me:
            claims = await claimed(me, table, 2)
            await me.settle(completed(claims[0]))
            assert await me.settle(*map(completed, claims), resent=True) == [True, True]
        assert table.statuses() == {"completed": 2}

    async def test_a_retry_of_an_earlier_claim_is_not_taken_for_this_one(self, dsn: str, table: Table) -> None:
        async with supervisor(dsn) as me, supervisor(dsn) as other:
            [first] = await claimed(me, table)
            assert await me.settle(retry(first, delay=0.0)) == [True]
            [second] = await me.claim()
            table.sql("UPDATE scheduled_tasks SET fence = fence + 1, claimed_by = %s", other.id)
            assert await me.settle(retry(second), resent=True) == [False]
            # Nor is the row's return to the queue under a later fence.
            table.sql("UPDATE scheduled_tasks SET status = 'queued', claimed_by = NULL")
            assert await me.settle(retry(second), resent=True) == [False]

    @pytest.mark.parametrize(
        "change",
        [
            "status = 'cancelled', fence = fence + 1",
            "status = 'cancelled'",
            "claimed_by = claimed_by + 1",
        ],
    )
    async def test_what_somebody_else_has_written_stays_fenced(self, dsn: str, table: Table, change: str) -> None:
        async with supervisor(dsn) as me:
            claims = await claimed(me, table, 4)
            table.sql(f"UPDATE scheduled_tasks SET {change}")
            verdicts = [kind(claim) for kind, claim in zip(KINDS, claims, strict=True)]
            assert await me.settle(*verdicts, resent=True) == [False] * 4


async def test_an_exchange_of_nothing_asks_nothing(dsn: str) -> None:
    async with supervisor(dsn) as me:
        assert await me.exchange([], [], 10) == Exchanged([], [], 0, 0, lease_alive=True)
