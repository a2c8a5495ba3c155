"""Every hot statement is an index lookup, whatever the planner believes of the table.

Each is run under every state of the table and its statistics that has led a queue astray, both with a plan that was
made in that state and with one that was made while the table was empty.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from pgsched.model import Claim, Verdict, VerdictKind, Want
from pgsched.store.arrays import numbers, texts
from pgsched.store.claims import claim_statement
from pgsched.store.pipeline import Statement
from pgsched.store.sql import load
from pgsched.store.verdicts import settle_completed_statement, settle_statement, settled_before_statement
from tests.store.desk import FAILURE, completed
from tests.support import Server, database_of

ROWS = 50_000
BATCH = 100
ME, DEAD = 1, 2

READY = (
    "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'a', now() - interval '1 hour' FROM generate_series(1, {})"
)
FUTURE = (
    "INSERT INTO scheduled_tasks (task_type, run_at, priority)"
    " SELECT 'a', now() + interval '1 day', 9 FROM generate_series(1, {})"
)
OTHER_TYPE = (
    "INSERT INTO scheduled_tasks (task_type, run_at, priority)"
    " SELECT 'aa', now() - interval '2 hours', 9 FROM generate_series(1, {})"
)
ENDED = (
    "INSERT INTO scheduled_tasks (task_type, run_at, status, finished_at)"
    " SELECT 'a', now() - interval '1 day', 'completed', now() FROM generate_series(1, {})"
)

MIXED = (
    "INSERT INTO scheduled_tasks (task_type, run_at, payload)"
    " SELECT CASE i % 20 WHEN 0 THEN 'a' ELSE 'x' || i % 20 END, now() - random() * interval '1 day',"
    " jsonb_build_object('x', repeat('y', 300)) FROM generate_series(1, {}) AS i"
)

STATES = {
    "empty": [],
    "few": [READY.format(300)],
    "ready, never analysed": [READY.format(ROWS)],
    "ready, analysed": [READY.format(ROWS), "ANALYZE"],
    "ready, analysed while empty": ["VACUUM ANALYZE", READY.format(ROWS)],
    "future of a higher priority": [FUTURE.format(ROWS), READY.format(10)],
    "another type's, older and higher": [OTHER_TYPE.format(ROWS), READY.format(10), "ANALYZE"],
    "of many types, in no order": [MIXED.format(ROWS), "ANALYZE"],
    "ended": [ENDED.format(ROWS), READY.format(10), "ANALYZE"],
    "split into partitions": ["SELECT pgsched_split(4)", READY.format(ROWS), "ANALYZE"],
    "ended, in ranges": [
        "SELECT pgsched_make_range('1 day', '2 days') FROM generate_series(1, 3)",
        ENDED.format(ROWS),
        READY.format(10),
        "ANALYZE",
    ],
}

CLAIM = Claim(1, 1, "a", "default", 0, "{}", 0, 3, None, 0.0, "", "(0,1)")


class Database(NamedTuple):
    """A database in one of the states."""

    connection: psycopg.Connection[Any]
    held: list[Claim]
    """Of supervisor `ME`."""


def verdicts(held: list[Claim]) -> list[Verdict]:
    kinds = [VerdictKind.COMPLETED, VerdictKind.RETRY, VerdictKind.FAILED, VerdictKind.RELEASED]
    return [Verdict(claim, kinds[claim.task_id % 4], 0.1, 1.0, "[1]", failure=FAILURE) for claim in held]


def statements(held: list[Claim]) -> dict[str, Statement]:
    ids, fences = numbers([claim.task_id for claim in held]), numbers([claim.fence for claim in held])
    wants = [Want("a", "default", 9, BATCH), Want("a", "default", 0, BATCH, "2020-01-01 00:00:00+00", 5)]
    return {
        "claim": claim_statement(ME, 1337, wants, BATCH),
        "claim_in_partitions": claim_statement(ME, 1337, [want._replace(partition=0) for want in wants], BATCH),
        "settle": settle_statement(ME, verdicts(held)),
        "settle_completed": settle_completed_statement(
            ME, [Verdict(claim, VerdictKind.COMPLETED, 0.1, result="[1]") for claim in held]
        ),
        "settle_completed_in_partitions": settle_completed_statement(
            ME, [completed(claim._replace(partition=0)) for claim in held or [CLAIM]]
        ),
        "settled_before": settled_before_statement(verdicts(held)),
        "confirm": ("confirm", (str(ME), ids, fences)),
        "release_strays": ("release_strays", (str(ME), ids, fences)),
        "discover": ("discover", (texts(["a", "b", "c"]),)),
        "discover_in_queues": ("discover_in_queues", (texts(["a", "b", "c"]), texts(["default", "x"]))),
        "discover_in_partitions": ("discover_in_partitions", (texts(["a", "b", "c"]), None, numbers([0, 2]))),
        "reap": ("reap", (str(ME), str(BATCH))),
        "reap_ownerless": ("reap_ownerless", (str(ME), str(BATCH))),
        "bury": ("bury", ()),
        "strays": ("strays", (str(ME),)),
        "deregister": ("deregister", (str(ME), None)),
        "prune": ("prune", ("-1", str(BATCH), None)),
    }


WHILE_EMPTY = "planned while empty"
MODES = {
    WHILE_EMPTY: b"",
    "planned now": b"",
    # A server told that its disks hate index lookups.
    "dear pages": b"SET random_page_cost = 1000",
}
NAMES = list(statements([]))
PROBES = {"discover", "discover_in_queues", "discover_in_partitions", "bury", "deregister"}
"""Whose cost does not depend on how many rows there are, due or held."""
TABLES = ("scheduled_tasks_live", "scheduled_tasks_ended", "pgsched_failures")


@pytest.fixture(scope="module", params=STATES)
def database(request: pytest.FixtureRequest, server: Server, template: str) -> Iterator[Database]:
    dsn = server.create(template)
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, application_name="tests")
    try:
        prepare(connection)
        for statement in STATES[request.param]:
            connection.execute(statement.encode())
        yield Database(connection, hold(connection))
    finally:
        connection.close()
        server.drop(dsn)


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Have every statement prepared, and its generic plan made, while the table is empty."""
    for table in ("scheduled_tasks_live", "scheduled_tasks_ended_rest"):
        connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
    connection.execute(
        "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes, lease_until)"
        " SELECT 'h', 'b', 1, 1, 1, 1, now() + interval '1 hour' * (3 - 2 * i) FROM generate_series(1, 2) AS i"
    )
    for name, (_, parameters) in statements([CLAIM]).items():
        connection.execute(f'PREPARE "{name} {WHILE_EMPTY}" AS '.encode() + load(name))
        with connection.transaction(force_rollback=True):
            hint(connection)
            connection.execute(call(f"{name} {WHILE_EMPTY}", parameters))


@contextmanager
def planned(connection: psycopg.Connection[Any], name: str, mode: str) -> Iterator[str]:
    """The prepared statement to run; its plan is made when that happens, unless the mode is about an older one."""
    with connection.transaction(force_rollback=True):
        hint(connection)
        if mode == WHILE_EMPTY:
            yield f"{name} {WHILE_EMPTY}"
            return
        connection.execute(MODES[mode])
        connection.execute(f"PREPARE {name} AS ".encode() + load(name))
        yield name
    connection.execute(f"DEALLOCATE {name}".encode())


def hold(connection: psycopg.Connection[Any]) -> list[Claim]:
    """Give the first rows to the living supervisor, as many others to the dead one, and some to nobody."""
    connection.execute(
        "UPDATE scheduled_tasks_live AS task"
        " SET status = 'processing', fence = 1, claimed_by = nullif(number %% 3, 0),"
        "     updated_at = now() - interval '2 hours'"
        " FROM (SELECT id, row_number() OVER (ORDER BY priority, id) AS number FROM scheduled_tasks_live) AS place"
        " WHERE task.id = place.id AND number <= least(%s, (SELECT count(*) / 2 FROM scheduled_tasks_live))",
        (3 * BATCH,),
    )
    rows = connection.execute("SELECT id, ctid::text FROM scheduled_tasks_live WHERE claimed_by = 1 ORDER BY id")
    return [CLAIM._replace(task_id=task_id, place=place) for task_id, place in rows]


def hint(connection: psycopg.Connection[Any]) -> None:
    psycopg.RawCursor(connection).execute(load("hints"), ("60000", "true", "0"))


def call(name: str, parameters: tuple[object, ...]) -> sql.Composed:
    arguments = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, parameters))) if parameters else sql.SQL("")
    return sql.SQL("EXECUTE {}{}").format(sql.Identifier(name), arguments)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_access_is_an_index_lookup(database: Database, name: str, mode: str) -> None:
    connection, held = database
    with planned(connection, name, mode) as prepared:
        explain = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ")
        [[[answer]]] = connection.execute(explain + call(prepared, statements(held)[name][1])).fetchall()
    plan = answer["Plan"]
    for node in nodes(plan):
        if node.get("Relation Name", "").startswith(TABLES) and node["Node Type"] != "ModifyTable":
            assert node["Node Type"] in ("Index Scan", "Index Only Scan", "Tid Scan"), json.dumps(node, indent=1)
            assert "Index Cond" in node or "TID Cond" in node, json.dumps(node, indent=1)
        # The one that may sort sorts the ids of supervisors.
        assert "Sort" not in node["Node Type"] or name == "reap_ownerless", json.dumps(node, indent=1)
    rows = max(node.get("Actual Rows", 0) * node.get("Actual Loops", 1) for node in nodes(plan))
    assert rows <= 8 * BATCH, json.dumps(plan, indent=1)
    blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert blocks <= (2 * BATCH if name in PROBES else 60 * BATCH), json.dumps(plan, indent=1)


@pytest.mark.parametrize("mode", MODES)
def test_a_claim_locks_what_it_takes_and_nothing_else(database: Database, mode: str) -> None:
    connection, _ = database
    with planned(connection, "claim", mode) as prepared:
        _, *claims = connection.execute(call(prepared, statements([])["claim"][1])).fetchall()
        [[locks]] = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchall()
    assert locks == len(claims) <= BATCH


def test_without_the_hints_some_plan_is_led_astray(server: Server, template: str) -> None:
    """Shows that the test above can fail: the same statements, unhinted, scan a table that was empty when analysed."""
    dsn = server.create(template)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None, application_name="tests") as connection:
        connection.execute("ANALYZE")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        astray = []
        for name in ("claim", "settle", "settle_completed", "confirm"):
            connection.execute(f"PREPARE {name} AS ".encode() + load(name))
            explain = sql.SQL("EXPLAIN (FORMAT JSON) ")
            [[[answer]]] = connection.execute(explain + call(name, statements([CLAIM])[name][1])).fetchall()
            astray += [node for node in nodes(answer["Plan"]) if node["Node Type"] == "Seq Scan"]
    server.drop(dsn)
    assert any(node["Relation Name"] == "scheduled_tasks_live" for node in astray), database_of(dsn)
