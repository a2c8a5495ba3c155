"""The roles of docs/security.md: what each may do, and what it may not."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from pgsched.app import App
from pgsched.errors import DatabaseError
from pgsched.store import check
from pgsched.store.schema import migrate
from tests.inprocess import InProcess
from tests.roles import ROLES, Role, role, statements
from tests.store.desk import Table
from tests.store.test_ranges import days_ago, make_old_range
from tests.support import Server

SECRET = "the price is 42"
INSERT = "INSERT INTO scheduled_tasks (task_type, payload, run_at) VALUES ('add', '{\"x\": 1}', now())"
KEPT = (
    "status",
    "retry_count",
    "error_log",
    "created_at",
    "fence",
    "claimed_by",
    "started_at",
    "finished_at",
    "result",
)

NOBODYS = [
    "TRUNCATE scheduled_tasks",
    "TRUNCATE scheduled_tasks_ended",
    "DROP TABLE pgsched_failures",
    "ALTER TABLE scheduled_tasks_live ADD COLUMN extra text",
    "ALTER TABLE scheduled_tasks DISABLE TRIGGER pgsched_wake",
    "DROP INDEX scheduled_tasks_due",
    "CREATE TABLE elsewhere (id integer)",
    "CREATE OR REPLACE FUNCTION pgsched_wake() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "UPDATE pgsched_schema SET version = 2",
    "SELECT setval('scheduled_tasks_id_seq', 1)",
]
READING = [
    "SELECT payload FROM scheduled_tasks",
    "SELECT result FROM scheduled_tasks_ended",
    "SELECT * FROM scheduled_tasks_live",
    "COPY scheduled_tasks_live TO STDOUT",
]
CHANGING = [
    "UPDATE scheduled_tasks SET status = 'cancelled'",
    "UPDATE scheduled_tasks_live SET run_at = now()",
    "DELETE FROM scheduled_tasks",
    "DELETE FROM scheduled_tasks_live",
    "DELETE FROM scheduled_tasks_ended",
    "DELETE FROM pgsched_supervisors",
    "UPDATE pgsched_supervisors SET lease_until = now()",
    "INSERT INTO pgsched_failures DEFAULT VALUES",
    "SELECT FROM scheduled_tasks_live FOR UPDATE",
]
PRODUCERS = [
    "SELECT id FROM scheduled_tasks",
    "SELECT count(*) FROM scheduled_tasks",
    "SELECT status FROM scheduled_tasks_live",
    f"{INSERT} RETURNING id",
    INSERT.replace("scheduled_tasks", "scheduled_tasks_live"),
    INSERT.replace("scheduled_tasks", "scheduled_tasks_ended"),
    "SELECT FROM pgsched_supervisors",
    "SELECT error FROM pgsched_failures",
    *(f"INSERT INTO scheduled_tasks (task_type, run_at, {column}) VALUES ('add', now(), NULL)" for column in KEPT),
]
LOOK_ALIKES = [
    ("varchar", "=", "varchar", "boolean"),
    ("varchar", "<>", "varchar", "boolean"),
    ("varchar", "<", "varchar", "boolean"),
    ("varchar", ">", "varchar", "boolean"),
    ("oid", "=", "regclass", "boolean"),
    ("bigint", "%", "integer", "bigint"),
]
FORBIDDEN = {
    "producer": [*NOBODYS, *READING, *CHANGING, *PRODUCERS],
    "supervisor": NOBODYS,
    "viewer": [*NOBODYS, *READING, *CHANGING, INSERT, "SELECT nextval('scheduled_tasks_id_seq')"],
}


@pytest.fixture
def some_tasks(server: Server, dsn: str) -> list[int]:
    """A queued, a completed and a failed task."""
    columns = "task_type, run_at, payload, status, result, error_log"
    made = server.sql(
        f"INSERT INTO scheduled_tasks ({columns}) VALUES ('add', now(), %s, 'queued', NULL, NULL),"
        " ('add', now(), %s, 'completed', %s, NULL), ('add', now(), '{}', 'failed', NULL, 'no such luck') RETURNING id",
        *[json.dumps({"note": SECRET})] * 3,
        dsn=dsn,
    )
    server.sql(
        "INSERT INTO pgsched_failures (task_id, attempt, fence, task_type, outcome, error, seconds)"
        " VALUES (%s, 1, 1, 'add', 'raised', 'no such luck', 1)",
        made[2][0],
        dsn=dsn,
    )
    return [task_id for (task_id,) in made]


@pytest.fixture
def producer(dsn: str) -> Iterator[Role]:
    with role(dsn, "producer") as made:
        yield made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InProcess:
    return InProcess({"PGSCHED_NO_EMBEDDED": "1"}, capsys, monkeypatch)


def _refused(connection: psycopg.Connection, statement: str) -> bool:
    try:
        connection.execute(statement.encode())
    except errors.InsufficientPrivilege:
        return True
    return False


@pytest.mark.parametrize("kind", ROLES)
def test_the_page_has_statements_for_each_role(kind: str) -> None:
    assert all(f"pgsched_{kind}" in block for block in statements(kind.capitalize()))


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("kind", ROLES)
def test_what_a_role_may_not_do(
    server: Server, dsn: str, some_tasks: list[int], kind: str, partitions: int | None
) -> None:
    rows = "SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM scheduled_tasks AS t"
    before = server.value(rows, dsn=dsn)
    # As it was before PostgreSQL 15.
    server.sql("GRANT CREATE ON SCHEMA public TO PUBLIC", dsn=dsn)
    with role(dsn, kind) as made, psycopg.connect(made.dsn, autocommit=True) as connection:
        migrate(dsn, partitions=partitions)
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        for statement in FORBIDDEN[kind]:
            assert _refused(connection, statement), statement
    assert server.value(rows, dsn=dsn) == before


def test_no_look_alike_is_called_with_the_owners_rights(dsn: str) -> None:
    """What fits the types of a call better than pg_catalog's own does wins, wherever it stands in the search_path."""
    migrate(dsn, partitions=2)
    with psycopg.connect(dsn, autocommit=True) as connection:
        table = Table(connection)
        strange, old = make_old_range(table, 4), make_old_range(table, 3)
        table.insert(status="paused", updated_at=days_ago(table, 4))
        table.insert(status="failed", finished_at=days_ago(table, 5))
        table.sql(
            "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes, listening,"
            " lease_until) VALUES ('h', 'b', 1, 1, 1, 1, true, 'infinity')"
        )
        trap = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trap'; END $$"
        for left, name, right, answer in LOOK_ALIKES:
            table.sql(f"CREATE OR REPLACE FUNCTION trap({left}, {right}) RETURNS {answer} {trap}")
            table.sql(f"CREATE OPERATOR {name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = trap)")
        texts = ", ".join(["text"] * 4)
        table.sql(f"CREATE FUNCTION format(text, text) RETURNS text {trap}")
        table.sql(f"CREATE FUNCTION format(text, text, timestamptz, timestamptz) RETURNS text {trap}")
        table.sql(f"CREATE FUNCTION format({texts}) RETURNS text {trap}")
        table.sql(f"CREATE FUNCTION hashtextextended(text, integer) RETURNS bigint {trap}")
        table.sql(f"CREATE FUNCTION pgsched_strange(text, text, text) RETURNS boolean {trap}")
        table.sql("INSERT INTO scheduled_tasks (task_type, run_at, unique_key) VALUES ('a', now(), 'k')")
        assert table.sql("SELECT pgsched_make_range('1 day', '1 day')") != [(None,)]
        assert table.sql("SELECT dropped FROM pgsched_drop_range('1 day')") == [(old,)]
        assert table.sql("SELECT count(*) FROM pgsched_ranges() WHERE name = %s", strange) == [(1,)]


def test_a_producer_enqueues_in_every_way(server: Server, dsn: str, producer: Role, run: InProcess) -> None:
    app = App(producer.dsn)

    @app.task
    def add(x: int) -> None:
        """Never run here."""

    ids = [add.enqueue(x=1), *add.enqueue_many([{"x": 2}, {"x": 3}]), add.options(delay=60, timeout=5).enqueue(4)]
    ids.append(asyncio.run(add.enqueue_async(x=5)))
    with psycopg.connect(producer.dsn) as connection:
        ids += add.options(connection=connection, priority=3).enqueue_many([{"x": 6}, {"x": 7}])
        connection.execute(INSERT.encode())
    app.close()
    ended = run("enqueue", "add", '{"x": 8}', environment={"PGSCHED_DSN": producer.dsn})
    assert ended.code == 0, ended.err
    ids.append(int(ended.out))
    stored = dict(server.sql("SELECT id, (payload ->> 'x')::integer FROM scheduled_tasks", dsn=dsn))
    assert [stored.pop(task_id) for task_id in ids] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list(stored.values()) == [1]
    assert server.sql("SELECT DISTINCT status, fence FROM scheduled_tasks", dsn=dsn) == [("queued", 0)]


def test_a_producer_needs_the_second_grant_for_keys(server: Server, dsn: str, producer: Role) -> None:
    app = App(producer.dsn)

    @app.task
    def add(x: int) -> None:
        """Never run here."""

    with pytest.raises(DatabaseError, match=r"^cannot enqueue: permission denied for table scheduled_tasks;"):
        add.options(unique_key="k").enqueue(x=1)
    producer.grant(1)
    assert add.options(unique_key="k").enqueue(x=1) == add.options(unique_key="k").enqueue(x=2)
    app.close()
    assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == 1
    with psycopg.connect(producer.dsn, autocommit=True) as connection:
        for statement in READING + CHANGING:
            assert _refused(connection, statement), statement


@pytest.mark.parametrize("kind", ["producer", "viewer"])
def test_commands_that_change_something_are_refused(dsn: str, some_tasks: list[int], run: InProcess, kind: str) -> None:
    with role(dsn, kind) as made:
        commands = [["cancel", "--all"], ["retry", "--all"], ["prune", "--older-than", "0"]]
        commands += [["status"], ["tasks"], ["show", str(some_tasks[0])]] if kind == "producer" else []
        commands += [["enqueue", "add"]] if kind == "viewer" else []
        for command in commands:
            ended = run(*command, environment={"PGSCHED_DSN": made.dsn})
            assert (ended.code, ended.out) == (3, ""), command
            assert ended.err.count("\n") == 1
            assert "permission denied" in ended.err
            assert made.password not in ended.err


@pytest.mark.parametrize("partitions", [None, 3])
def test_a_viewer_sees_all_but_payloads_and_results(
    dsn: str, some_tasks: list[int], run: InProcess, partitions: int | None
) -> None:
    with role(dsn, "viewer") as viewer:
        migrate(dsn, partitions=partitions)
        commands = [*itertools.product(("status", "tasks"), ([], ["--json"]))]
        commands += [("show", [str(task_id), *extra]) for task_id in some_tasks for extra in ([], ["--json"])]
        shown = ""
        for command, arguments in commands:
            ended = run(command, *arguments, environment={"PGSCHED_DSN": viewer.dsn})
            assert (ended.code, ended.err) == (0, ""), (command, arguments)
            shown += ended.out
    assert SECRET not in shown
    assert "no such luck" in shown
    assert "not for this role to read" in shown
    owner = run("show", str(some_tasks[1]), environment={"PGSCHED_DSN": dsn})
    assert owner.out.count(SECRET) == 2


@pytest.mark.parametrize("partitions", [None, 3])
def test_a_supervisor_lacks_nothing_and_has_nothing_that_the_check_does_not_ask_for(
    server: Server, dsn: str, partitions: int | None
) -> None:
    with role(dsn, "supervisor") as made:
        migrate(dsn, partitions=partitions)
        found = check.check(made.dsn)
        assert [problem for problem in found if problem.level == "error"] == []
        held = server.sql(
            "SELECT table_name || ' ' || privilege_type FROM information_schema.role_table_grants WHERE grantee = %s",
            made.group,
            dsn=dsn,
        )
        assert held
        for (grant,) in held:
            table, privilege = grant.split()
            server.sql(f'REVOKE {privilege} ON {table} FROM "{made.group}"', dsn=dsn)
            lacks = [problem.cure for problem in check.check(made.dsn) if problem.level == "error"]
            assert f'GRANT {privilege} ON {table} TO "{made.user}"' in lacks
            server.sql(f'GRANT {privilege} ON {table} TO "{made.group}"', dsn=dsn)
