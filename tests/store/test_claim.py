"""Discover and claim: which rows, in which order, how many, and what is locked meanwhile."""

import itertools
import math
from collections.abc import Callable

import psycopg
import pytest

from pgsched.model import Want
from pgsched.store.claims import claim_statement
from pgsched.store.sql import load
from tests.store.desk import WANT, Bound, Table, completed, released, supervisor
from tests.support import Server, database_of, eventually_async

Connect = Callable[..., psycopg.Connection]
ODD = ["a,b", 'quo"te', "back\\slash", "{brace}", "NULL", "", " ", "ümläut", "per%cent"]


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


async def test_a_claim_takes_due_rows_oldest_first(dsn: str, table: Table, bound: Bound) -> None:
    ids = table.insert(5, run_at="now() - interval '1 minute' * i", payload='{"n": 1}', max_retries=7, timeout=2.5)
    table.insert(run_at="now() + interval '1 hour'")
    async with supervisor(dsn, partitions=bound) as me:
        claims = await me.claim()
        assert [claim.task_id for claim in claims] == ids[::-1]
        first = claims[0]
        assert (first.fence, first.task_type, first.queue, first.priority) == (1, "a", "default", 0)
        assert (first.payload, first.retry_count, first.max_retries, first.timeout) == ('{"n": 1}', 0, 7, 2.5)
        assert first.attempt == 1
        assert 300 <= first.late < 310
        row = table.row(first.task_id)
        assert (row.status, row.fence, row.claimed_by) == ("processing", 1, me.id)
        assert row.started_at == row.updated_at >= row.created_at
        assert await me.claim() == []


async def test_equal_times_go_by_id(dsn: str, table: Table, bound: Bound) -> None:
    ids = table.insert(50)
    async with supervisor(dsn, partitions=bound) as me:
        taken = [claim.task_id for _ in range(5) for claim in await me.claim(total=10)]
    assert taken == ids


async def test_wants_are_served_in_their_order_each_up_to_its_quota(dsn: str, table: Table, bound: Bound) -> None:
    low = table.insert(5, priority=1)
    high = table.insert(5, priority=9)
    other = table.insert(5, task_type="b", queue="q")
    wants = [Want("a", "default", 9, 2), Want("b", "q", 0, 3), Want("a", "default", 1, 10)]
    async with supervisor(dsn, partitions=bound) as me:
        claims = await me.claim(*wants, total=8)
    assert [claim.task_id for claim in claims] == high[:2] + other[:3] + low[:3]


async def test_a_claim_is_of_its_group_only(dsn: str, table: Table, bound: Bound) -> None:
    table.insert(task_type="A")
    table.insert(task_type="a ")
    table.insert(queue="other")
    table.insert(priority=1)
    async with supervisor(dsn, partitions=bound) as me:
        assert await me.claim() == []


async def test_names_of_any_kind_are_found_as_they_are(dsn: str, table: Table) -> None:
    ids = [table.insert(task_type=name, queue=name or "default")[0] for name in ODD]
    async with supervisor(dsn) as me:
        for queues in (None, [*ODD, "default"]):
            groups = await me.store.discover(ODD, queues)
            assert {(group.task_type, group.queue) for group in groups} == {(name, name or "default") for name in ODD}
            assert {group.head_id for group in groups} == set(ids)
        claims = await me.claim(*(Want(group.task_type, group.queue, 0, 1) for group in groups))
    assert {claim.task_id for claim in claims} == set(ids)


async def test_a_floor_is_inclusive_and_hides_what_is_below(dsn: str, table: Table, bound: Bound) -> None:
    ids = table.insert(5)
    async with supervisor(dsn, partitions=bound) as me:
        [head] = await me.store.discover(["a"], None)
        floored = WANT._replace(floor_run_at=head.head_run_at, floor_id=ids[2])
        assert [claim.task_id for claim in await me.claim(floored)] == ids[2:]
        assert [claim.task_id for claim in await me.claim()] == ids[:2]


async def test_a_claims_run_at_is_a_floor_whatever_the_session_thinks_of_dates(
    dsn: str, table: Table, server: Server
) -> None:
    ids = table.insert(3, run_at="timestamptz '2020-02-03 04:05:06.000007Z'")
    # There, "IST" is what the session calls its own zone, and reads as Israel's.
    name = database_of(dsn)
    server.sql(f"ALTER DATABASE \"{name}\" SET DateStyle = 'SQL, DMY'")
    server.sql(f"ALTER DATABASE \"{name}\" SET TimeZone = 'Asia/Kolkata'")
    async with supervisor(dsn) as me:
        [claim] = await me.claim(total=1)
        floor = WANT._replace(floor_run_at=claim.run_at, floor_id=claim.task_id)
        assert [after.task_id for after in await me.claim(floor)] == ids[1:]


async def test_infinite_and_ancient_times_do_no_harm(dsn: str, table: Table) -> None:
    [always] = table.insert(run_at="timestamptz '-infinity'", task_type="always")
    table.insert(run_at="timestamptz 'infinity'", task_type="never")
    [ancient] = table.insert(run_at="timestamptz '4000-01-01 BC'", task_type="ancient")
    types = ["always", "never", "ancient"]
    async with supervisor(dsn) as me:
        due = {group.task_type: group.due_in for group in await me.store.discover(types, None)}
        assert (due["always"], due["never"]) == (-math.inf, math.inf)
        assert due["ancient"] < -1e11
        claims = await me.claim(*(Want(name, "default", 0, 9) for name in types))
        assert [claim.task_id for claim in claims] == [always, ancient]
        assert claims[0].late == 0
        assert await me.settle(*map(released, claims)) == [True, True]
        floors = [Want(c.task_type, "default", 0, 9, c.run_at, c.task_id) for c in claims]
        assert len(await me.claim(*floors)) == 2
        assert [depth.queued for depth in (await me.store.depth()).queues] == [1]


async def test_discover_finds_each_group_once_with_its_oldest_row(dsn: str, table: Table) -> None:
    expected = {}
    for task_type in ("a", "b"):
        for queue in ("default", "q"):
            for priority in (-5, 0, 32767):
                late, early = table.insert(
                    2, run_at="now() - interval '1 minute' * i", task_type=task_type, queue=queue, priority=priority
                )
                assert late < early
                expected[task_type, queue, priority] = early
    table.insert(task_type="unknown")
    async with supervisor(dsn) as me:
        groups = await me.store.discover(["a", "b", "c"], None)
        assert {(g.task_type, g.queue, g.priority): g.head_id for g in groups} == expected
        assert len(groups) == len(expected)
        assert all(-150 < group.due_in <= -119 for group in groups)
        in_queue = await me.store.discover(["a", "b", "c"], ["q", "nowhere"])
        assert {group.head_id for group in in_queue} == {group.head_id for group in groups if group.queue == "q"}
        assert len(in_queue) == len(expected) / 2
        assert await me.store.discover([], None) == []
        assert await me.store.discover(["a"], []) == []


async def test_discover_tells_when_the_next_row_is_due(dsn: str, table: Table) -> None:
    table.insert(run_at="now() + interval '90 seconds'")
    async with supervisor(dsn) as me:
        [group] = await me.store.discover(["a"], None)
    assert 80 < group.due_in <= 90


async def test_rows_that_somebody_holds_are_skipped_without_waiting(
    dsn: str, table: Table, connect: Connect, bound: Bound
) -> None:
    ids = table.insert(5)
    other = connect(autocommit=False)
    other.execute("SELECT FROM scheduled_tasks WHERE id = ANY (%s) FOR UPDATE", (ids[:2],))
    async with supervisor(dsn, partitions=bound) as me:
        assert [claim.task_id for claim in await me.claim()] == ids[2:]


async def test_a_claim_that_passes_leaves_what_somebody_may_be_about_to_take(
    dsn: str, table: Table, connect: Connect, bound: Bound
) -> None:
    ids = table.insert(9)
    older, taking, failed = (connect(autocommit=False) for _ in range(3))
    older.execute("SELECT pg_current_xact_id()")
    for other, rows in ((taking, ids[:2]), (failed, ids[2:4])):
        other.execute("SELECT FROM scheduled_tasks WHERE id = ANY (%s) FOR UPDATE", (rows,))
    failed.rollback()
    passing = WANT._replace(passing=True)
    async with supervisor(dsn, partitions=bound) as me:
        assert [claim.task_id for claim in await me.claim(passing, total=2)] == ids[4:6]
        # They are not lost to it: the claim that follows a scan takes them.
        assert [claim.task_id for claim in await me.claim(total=1)] == ids[2:3]
        taking.rollback()
        older.rollback()
        found: list[int] = []

        async def claimed() -> bool:
            """Nobody is at work any more, but what the server does by itself."""
            found.extend([claim.task_id for claim in await me.claim(passing)])
            return sorted(found) == [*ids[:2], ids[3], *ids[6:]]

        await eventually_async(claimed)  # type: ignore[arg-type]


@pytest.mark.parametrize("namespace", [1337, -7])
async def test_a_refused_advisory_lock_is_counted_and_its_row_left(
    dsn: str, table: Table, connect: Connect, namespace: int, bound: Bound
) -> None:
    ids = table.insert(3)
    lock = "SELECT pg_advisory_xact_lock(%s, (id %% 2147483647)::integer) FROM unnest(%s::bigint[]) AS id"
    other = connect(autocommit=False)
    other.execute(lock, (namespace, ids[:1]))
    elsewhere = connect(autocommit=False)
    elsewhere.execute(lock, (namespace + 1, ids))
    async with supervisor(dsn, namespace=namespace, partitions=bound) as me:
        answer = await me.exchange([], [WANT], 10)
        assert ([claim.task_id for claim in answer.claims], answer.skipped) == (ids[1:], 1)
        answer = await me.exchange([], [WANT], 10)
        assert (answer.claims, answer.skipped, answer.lease_alive) == ([], 1, True)
    assert table.row(ids[0]).fence == 0


async def test_a_row_that_the_table_refuses_holds_up_its_own_group_only(
    dsn: str, table: Table, caplog: pytest.LogCaptureFixture, bound: Bound
) -> None:
    """By a constraint of the user's that was added NOT VALID, and is broken by a row that waits."""
    before, bad, behind = table.insert(3)
    others = table.insert(2, priority=-1)
    table.sql(f"ALTER TABLE scheduled_tasks ADD CONSTRAINT own CHECK (id <> {bad}) NOT VALID")
    async with supervisor(dsn, partitions=bound) as me:
        wants = [Want("a", "default", 0, 100), Want("a", "default", -1, 100)]
        taken: list[int] = []
        for _ in range(3):
            answer = await me.exchange([], wants, 100)
            taken += [claim.task_id for claim in answer.claims]
        assert {want.priority for want in answer.refused} == {0}
        assert {before, *others} <= set(taken)
        assert bad not in taken
        assert "claim_refused" in {record.msg for record in caplog.records}
        table.sql("ALTER TABLE scheduled_tasks DROP CONSTRAINT own")
        answer = await me.exchange([], wants, 100)
        assert (set(taken) | {claim.task_id for claim in answer.claims}, answer.refused) == (
            {before, bad, behind, *others},
            (),
        )


async def test_a_claim_brings_some_mebibytes_and_no_more(dsn: str, table: Table, bound: Bound) -> None:
    ids = table.insert(13)
    # What cannot be compressed, and is stored outside of the rows.
    noise = "SELECT jsonb_build_object('x', string_agg(md5(random()::text || i), '')) FROM generate_series(1, %s) AS i"
    table.sql(f"UPDATE scheduled_tasks SET payload = ({noise}) WHERE id < %s", 40_000, ids[10])
    table.sql(f"UPDATE scheduled_tasks SET payload = ({noise}) WHERE id = %s", 200_000, ids[11])
    async with supervisor(dsn, partitions=bound) as me:
        answers = [await me.exchange([], [WANT], 1000) for _ in range(5)]
    assert [len(answer.claims) for answer in answers] == [4, 4, 4, 1, 0]
    assert [claim.task_id for answer in answers for claim in answer.claims] == ids
    assert {answer.skipped for answer in answers} == {0}


async def test_a_payload_that_is_too_large_stays_where_it_is(dsn: str, table: Table, bound: Bound) -> None:
    # A quotation mark is stored as one byte, and thousands of them as a hundred; as text each takes two.
    quotes = "SELECT jsonb_build_object('x', repeat('\"', %s))"
    small, fits, large = table.insert(3)
    for task_id, size in ((fits, 2**25 - 100), (large, 2**25)):
        table.sql(f"UPDATE scheduled_tasks SET payload = ({quotes}) WHERE id = %s", size, task_id)
    async with supervisor(dsn, partitions=bound) as me:
        sizes = {claim.task_id: len(claim.payload) for claim in await me.claim()}
    assert sizes == {small: 2, fits: len('{"x": ""}') + 2**26 - 200, large: 0}


async def test_groups_after_the_limit_are_not_touched(dsn: str, table: Table, connect: Connect, bound: Bound) -> None:
    table.insert(5, priority=9)
    low = table.insert(5)
    async with supervisor(dsn, partitions=bound) as me:
        wants = [Want("a", "default", 9, 100), Want("a", "default", 0, 100)]
        name, parameters = claim_statement(me.id, 1337, me.wants(*wants), 5)
        claiming = connect(autocommit=False)
        psycopg.RawCursor(claiming).execute(load("hints"), ("60000", "true", "0"))
        psycopg.RawCursor(claiming).execute(load(name), parameters)
        free = table.sql("SELECT id FROM scheduled_tasks WHERE status = 'queued' ORDER BY id FOR UPDATE SKIP LOCKED")
        assert [task_id for (task_id,) in free] == low
        assert table.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(5,)]


async def test_no_live_lease_no_claim(dsn: str, table: Table, bound: Bound) -> None:
    table.insert(3)
    async with supervisor(dsn, partitions=bound) as me:
        table.expire(me.id)
        answer = await me.exchange([], [WANT], 10)
        assert (answer.claims, answer.lease_alive) == ([], False)
        assert (await me._replace(id=me.id + 1).exchange([], [WANT], 10)).lease_alive is False
    assert table.statuses() == {"queued": 3}


async def test_a_claim_that_finds_nothing_leaves_nothing_to_be_written(
    dsn: str, table: Table, connect: Connect, bound: Bound
) -> None:
    """A hint wakes many supervisors, and the disk that the one waits for which finds the row is the same."""
    async with supervisor(dsn, partitions=bound) as me:
        name, parameters = claim_statement(me.id, 1337, me.wants(WANT), 10)
        cursor = psycopg.RawCursor(connect(autocommit=False))
        cursor.execute(load("hints"), ("60000", "true", "0"))

        def claim() -> tuple[int, bool]:
            """How many it takes, and whether the transaction has anything to write."""
            [(alive, asked, *_), *claims] = cursor.execute(load(name), parameters).fetchall()
            assert (alive, asked) == (1, len(claims))
            [(number,)] = cursor.execute("SELECT pg_current_xact_id_if_assigned()").fetchall()
            return len(claims), number is not None

        assert claim() == (0, False)
        table.insert()
        assert claim() == (1, True)


async def test_f52_ids_beyond_32_bits_and_lock_keys_that_meet(dsn: str, table: Table) -> None:
    first = 2147483647 * 3_000_000
    table.sql("SELECT setval('scheduled_tasks_id_seq', %s)", 2**62)
    table.insert()
    for task_id in (first, first + 2147483647):
        table.insert(id=task_id)
    async with supervisor(dsn) as me:
        claims = await me.claim()
        assert len(claims) == 3
        assert await me.settle(*map(completed, claims)) == [True] * 3


async def test_f55_nothing_starts_before_it_was_created(dsn: str, table: Table) -> None:
    [ahead] = table.insert(created_at="2999-01-01Z")
    async with supervisor(dsn) as me:
        [claim] = await me.claim()
        assert table.row(ahead).started_at == table.row(ahead).created_at
        await me.settle(completed(claim))
        row = table.row(ahead)
    assert row.started_at <= row.finished_at


def fill_lock_memory(connection: psycopg.Connection, step: int) -> None:
    """Take advisory locks until there is memory for fewer than `step` more."""
    lock = "SELECT count(pg_advisory_xact_lock(99, i)) FROM generate_series(%s::integer, %s::integer) AS i"
    connection.execute("SELECT")  # The transaction begins here; the blocks below are savepoints in it.
    for first in itertools.count(1, step):
        try:
            with connection.transaction():
                connection.execute(lock, (first, first + step - 1))
        except psycopg.errors.OutOfMemory:
            return


async def test_without_memory_for_the_locks_less_is_claimed(dsn: str, table: Table, connect: Connect) -> None:
    table.insert(4000)
    filler = connect(autocommit=False)
    fill_lock_memory(filler, 1000)
    want = WANT._replace(quota=4000)
    async with supervisor(dsn) as me:
        first = await me.exchange([], [want], 4000)
        assert first.failed >= 2
        assert 0 < len(first.claims) < 1000
        # It has learned, and does not run into it again.
        second = await me.exchange([*map(completed, first.claims)], [want], 4000)
        assert all(second.settled)
        assert second.failed == 0
        assert 0 < len(second.claims) < 1000
        filler.rollback()
        for _ in range(100):
            third = await me.exchange([], [want], 4000)
            assert third.failed == 0
        assert table.statuses() == {"completed": len(first.claims), "processing": 4000 - len(first.claims)}


async def test_depth_counts_by_queue(dsn: str, table: Table) -> None:
    table.insert(3, run_at="now() - interval '1 minute' * i")
    table.insert(2, task_type="b", priority=4, run_at="now() + interval '1 minute'")
    table.insert(4, queue="q", run_at="now() + interval '1 minute'")
    async with supervisor(dsn) as me:
        assert await me.claim(total=1)
        default, q = (await me.store.depth()).queues
    assert (default.queue, default.queued, default.processing) == ("default", 4, 1)
    assert 120 <= default.oldest_due < 130
    assert q == ("q", 4, 0, 0.0)


async def test_depth_counts_what_is_due_by_type(dsn: str, table: Table) -> None:
    table.insert(3)
    table.insert(2, queue="q", priority=4)
    table.insert(4, run_at="now() + interval '1 minute'")
    table.insert(2, task_type="b", run_at="now() + interval '1 minute'")
    async with supervisor(dsn) as me, supervisor(dsn) as other:
        assert await me.claim(total=1)
        assert (await me.store.depth()).due == {"a": 4, "b": 0}
        assert (await other.store.depth()).due == {"a": 4, "b": 0}


async def test_depth_looks_at_each_group_once_however_many_there_are(table: Table) -> None:
    table.sql(
        "INSERT INTO scheduled_tasks (task_type, queue, run_at)"
        " SELECT 'a' || i % 20, 'q' || i, now() FROM generate_series(1, 200) AS i"
    )
    for setting in ("enable_seqscan = off", "enable_bitmapscan = off", "jit = off"):
        table.sql(f"SET {setting}")
    [[[plan]]] = table.sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {load('depth').decode()}")
    nodes, thrown_away = [plan["Plan"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        thrown_away += node.get("Rows Removed by Filter", 0) * node["Actual Loops"]
    assert thrown_away < 200


COUNTED = " WHERE depths IS NOT NULL"


async def test_supervisors_count_the_depth_for_each_other(dsn: str, table: Table) -> None:
    async with supervisor(dsn) as me, supervisor(dsn) as other:
        assert (await me.store.depth()).queues == []
        table.sql("UPDATE pgsched_supervisors SET depths_at = depths_at - interval '2.6 seconds'")
        table.insert(3, queue='q "x"')
        counted = (await me.store.depth()).queues
        assert [depth[:3] for depth in counted] == [('q "x"', 3, 0)]
        table.insert()
        assert (await other.store.depth()).queues == counted
        table.sql("UPDATE pgsched_supervisors SET depths_at = depths_at - interval '2.6 seconds'")
        assert len((await other.store.depth()).queues) == 2
        # What took long is not repeated so soon.
        table.sql(
            "UPDATE pgsched_supervisors SET depths_at = now() - interval '9 seconds', depths_took = '100 ms'" + COUNTED
        )
        table.insert(queue="third")
        assert len((await me.store.depth()).queues) == 2
        table.sql("UPDATE pgsched_supervisors SET depths_at = now() - interval '11 seconds'" + COUNTED)
        assert len((await me.store.depth()).queues) == 3


async def test_a_depth_that_cannot_be_left_to_others_is_told_all_the_same(
    dsn: str, table: Table, connect: Connect
) -> None:
    table.insert(3)
    async with supervisor(dsn) as me:
        other = connect(autocommit=False)
        other.execute("SELECT FROM pgsched_supervisors FOR UPDATE")
        assert [depth.queued for depth in (await me.store.depth()).queues] == [3]
        other.rollback()
        assert table.sql("SELECT depths FROM pgsched_supervisors") == [(None,)]
