"""Migrations: safe twice and from two hosts at once; versions that do not fit are refused with the command to run."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsched.errors import DatabaseError, SchemaError
from pgsched.store import schema
from tests.support import Server, eventually

Require = Callable[[str], None]


def require_sync(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
        schema.require(conn)


def require_async(dsn: str) -> None:
    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
            await schema.require_async(conn)

    asyncio.run(body())


both = pytest.mark.parametrize("require", [require_sync, require_async])


def version(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        return schema.version(conn)


def applied(place: str = "public", after: int = 0) -> list[str]:
    """What `migrate` says of the migrations that it applies."""
    return [f"applied {name} in schema {place}" for version, name in schema.MIGRATIONS.items() if version > after]


@both
def test_migrate_makes_what_require_asks_for(empty_dsn: str, require: Require) -> None:
    with pytest.raises(SchemaError, match=r"no pgsched tables with search_path .* run `pgsched migrate`"):
        require(empty_dsn)
    assert version(empty_dsn) == 0
    assert schema.migrate(empty_dsn) == applied()
    require(empty_dsn)
    assert version(empty_dsn) == schema.LATEST


def test_migrate_twice_changes_nothing(server: Server, empty_dsn: str) -> None:
    schema.migrate(empty_dsn)
    applied = server.sql("SELECT * FROM pgsched_schema", dsn=empty_dsn)
    assert schema.migrate(empty_dsn) == [f"schema public is up to date (version {schema.LATEST})"]
    assert server.sql("SELECT * FROM pgsched_schema", dsn=empty_dsn) == applied


def migrate_to_the_first(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tables as the first version had them."""
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "LATEST", 1)
        schema.migrate(dsn)


def test_tables_of_an_earlier_version_are_brought_up_to_date_with_their_rows(
    server: Server, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate_to_the_first(empty_dsn, monkeypatch)
    values = (
        "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes, lease_until)"
    )
    server.sql(f"{values} VALUES ('web-1', 'b', 1, 2, 3, 4, now())", dsn=empty_dsn)
    server.sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('a', now())", dsn=empty_dsn)
    assert schema.migrate(empty_dsn) == applied(after=1)
    assert server.sql("SELECT host, wanted_processes FROM pgsched_supervisors", dsn=empty_dsn) == [("web-1", None)]
    assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=empty_dsn) == 1


def test_an_update_waits_long_enough_to_have_an_autovacuum_ended(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends one after the `deadlock_timeout` of whoever waits for it."""
    waits: list[float] = []

    def refused(conn: psycopg.Connection[Any], lock_wait: float, partitions: int | None) -> list[str]:
        waits.append(lock_wait)
        if len(waits) < 4:
            raise psycopg.errors.LockNotAvailable
        return []

    monkeypatch.setattr(schema, "_transaction", refused)
    monkeypatch.setattr(schema, "LOCK_PAUSE", 0.0)
    assert schema.migrate(empty_dsn, timeout=60) == []
    assert [wait > 1 for wait in waits] == [False, False, True, False]


def test_an_update_that_waits_for_a_reader_makes_nobody_wait_behind_it(
    server: Server, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump reads for minutes; a renewal that waits as long behind the update comes too late."""
    migrate_to_the_first(empty_dsn, monkeypatch)
    patient = make_conninfo(empty_dsn, options="-c lock_timeout=15s")
    with (
        psycopg.connect(empty_dsn) as reader,
        psycopg.connect(patient, autocommit=True) as other,
        ThreadPoolExecutor() as threads,
    ):
        reader.execute("SELECT FROM pgsched_supervisors")
        migrating = threads.submit(schema.migrate, empty_dsn, timeout=60)
        for _ in range(3):
            eventually(lambda: server.waits_for_lock(empty_dsn), "it waits again")
            other.execute("UPDATE pgsched_supervisors SET lease_until = now()")
            other.execute("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('a', now())")
        assert not migrating.done()
        reader.rollback()
        assert migrating.result(60) == applied(after=1)


def test_f84_two_hosts_migrate_at_once(server: Server, empty_dsn: str) -> None:
    # Under REPEATABLE READ the second would read the catalogue as it was before the first.
    dsn = make_conninfo(empty_dsn, options="-c default_transaction_isolation=repeatable\\ read")
    barrier = threading.Barrier(6, timeout=30)

    def host() -> str:
        barrier.wait()
        return schema.migrate(dsn)[0]

    with ThreadPoolExecutor(6) as threads:
        hosts = [threads.submit(host) for _ in range(6)]
        done = sorted(host.result(30) for host in hosts)
    assert done == applied()[:1] + [f"schema public is up to date (version {schema.LATEST})"] * 5
    assert server.value("SELECT count(*) FROM pgsched_schema", dsn=empty_dsn) == schema.LATEST


def test_role_with_strict_limits_can_migrate(server: Server, empty_dsn: str) -> None:
    limits = "-c statement_timeout=300 -c lock_timeout=300 -c default_transaction_read_only=on"
    dsn = make_conninfo(empty_dsn, options=limits)
    waited = (
        "SELECT max(now() - query_start) > '500 ms' FROM pg_stat_activity"
        " WHERE datname = %s AND wait_event = 'advisory'"
    )
    with ThreadPoolExecutor() as threads, psycopg.connect(empty_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('pgsched migrate', 0))")
        migrating = threads.submit(schema.migrate, dsn)
        eventually(lambda: migrating.done() or server.value(waited, other.info.dbname))
        other.rollback()
        assert migrating.result(30) == applied()


@both
@pytest.mark.parametrize(
    ("number", "cure"), [(schema.LATEST + 1, "upgrade pgsched"), (schema.LATEST - 1, "run `pgsched migrate`")]
)
def test_f84_other_version_is_refused(server: Server, dsn: str, require: Require, number: int, cure: str) -> None:
    server.sql("DELETE FROM pgsched_schema WHERE version > %s", number, dsn=dsn)
    server.sql("INSERT INTO pgsched_schema (version) VALUES (%s) ON CONFLICT DO NOTHING", number, dsn=dsn)
    with pytest.raises(SchemaError, match=cure) as caught:
        require(dsn)
    assert "\n" not in str(caught.value)


def test_f84_migrate_refuses_a_newer_schema(server: Server, dsn: str) -> None:
    server.sql("INSERT INTO pgsched_schema (version) VALUES (%s)", schema.LATEST + 1, dsn=dsn)
    with pytest.raises(SchemaError, match=f"version {schema.LATEST + 1}.*upgrade pgsched"):
        schema.migrate(dsn)


@both
def test_f84_dropped_table_is_noticed(server: Server, dsn: str, require: Require) -> None:
    server.sql("DROP TABLE scheduled_tasks", dsn=dsn)
    with pytest.raises(SchemaError, match="scheduled_tasks beside it is missing"):
        require(dsn)
    with pytest.raises(SchemaError, match="scheduled_tasks beside it is missing"):
        schema.migrate(dsn)


@both
def test_f84_tables_outside_of_the_search_path_are_missing(dsn: str, require: Require) -> None:
    with pytest.raises(SchemaError, match=r"search_path elsewhere: run `pgsched migrate`"):
        require(make_conninfo(dsn, options="-c search_path=elsewhere"))


def test_schema_of_its_own(server: Server, empty_dsn: str) -> None:
    server.sql('CREATE SCHEMA "My App"', dsn=empty_dsn)
    dsn = make_conninfo(empty_dsn, options='-c search_path="My\\ App",public')
    assert schema.migrate(dsn) == applied('"My App"')
    require_sync(dsn)
    # Found through the path, though new tables would go to the first schema of it.
    server.sql("CREATE SCHEMA first", dsn=empty_dsn)
    later = make_conninfo(empty_dsn, options='-c search_path=first,"My\\ App"')
    assert schema.migrate(later) == [f'schema "My App" is up to date (version {schema.LATEST})']


def test_search_path_without_schemas_is_refused(empty_dsn: str) -> None:
    with pytest.raises(SchemaError, match="no schema of search_path nowhere exists"):
        schema.migrate(make_conninfo(empty_dsn, options="-c search_path=nowhere"))


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE VIEW scheduled_tasks AS SELECT 1 AS id", "view"),
        ("CREATE TABLE scheduled_tasks (id bigint) PARTITION BY HASH (id)", "partitioned table"),
    ],
)
def test_foreign_relation_of_the_name_is_refused(server: Server, empty_dsn: str, statement: str, kind: str) -> None:
    server.sql(statement, dsn=empty_dsn)
    with pytest.raises(SchemaError, match=f"public.scheduled_tasks is a {kind} that pgsched has not made"):
        schema.migrate(empty_dsn)


def test_taken_name_is_refused_and_nothing_changed(server: Server, empty_dsn: str) -> None:
    server.sql("CREATE TABLE pgsched_failures (id int)", dsn=empty_dsn)
    with pytest.raises(SchemaError, match='"pgsched_failures" already exists; nothing was changed'):
        schema.migrate(empty_dsn)
    assert server.sql("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace", dsn=empty_dsn) == [
        ("pgsched_failures",)
    ]


def test_f84_rights_that_are_missing_are_named(server: Server, dsn: str, empty_dsn: str) -> None:
    role = f"pgsched_test_{server.value('SELECT pg_backend_pid()')}"
    server.sql(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(DatabaseError, match=r"permission denied for table pgsched_schema.*pgsched check"):
            require_sync(make_conninfo(dsn, options=f"-c role={role}"))
        with pytest.raises(DatabaseError, match="permission denied for schema public; only the tables' owner"):
            schema.migrate(make_conninfo(empty_dsn, options=f"-c role={role}"))
        # Up to date needs no right to create.
        server.sql(f"GRANT SELECT ON pgsched_schema TO {role}", dsn=dsn)
        assert "up to date" in schema.migrate(make_conninfo(dsn, options=f"-c role={role}"))[0]
    finally:
        server.sql(f"DROP OWNED BY {role}", dsn=dsn)
        server.sql(f"DROP ROLE {role}")


class TestWake:
    """The trigger that tells sleeping supervisors of new tasks."""

    INSERT = "INSERT INTO {}scheduled_tasks (task_type, run_at) VALUES ('a', now())"
    LISTENING = (
        "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes, listening,"
        " lease_until) VALUES ('h', 'b', 1, 1, 1, 1, {}, now() + interval '{} s')"
    )

    def heard(self, dsn: str, server: Server, insert: str, as_role: str | None = None) -> bool:
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute("LISTEN pgsched")
            options = f"-c search_path=pg_catalog -c role={as_role}" if as_role else ""
            with psycopg.connect(make_conninfo(dsn, options=options), autocommit=True) as conn:
                conn.execute(insert.encode())
            # A marker from behind ends the wait either way.
            listener.execute("NOTIFY pgsched, 'marker'")
            first = next(listener.notifies(timeout=30))
        return first.payload == ""

    @pytest.mark.parametrize(("listening", "lease", "woken"), [(True, 60, True), (False, 60, False), (True, -1, False)])
    def test_only_who_sleeps_under_a_live_lease_is_woken(
        self, server: Server, dsn: str, listening: bool, lease: int, woken: bool
    ) -> None:
        server.sql(self.LISTENING.format(listening, lease), dsn=dsn)
        assert self.heard(dsn, server, self.INSERT.format("")) is woken

    def test_insert_needs_no_rights_on_our_other_tables(self, server: Server, dsn: str) -> None:
        server.sql(self.LISTENING.format(True, 60), dsn=dsn)
        role = f"pgsched_test_{server.value('SELECT pg_backend_pid()')}"
        server.sql(f"CREATE ROLE {role}")
        try:
            server.sql(f"GRANT INSERT ON scheduled_tasks TO {role}", dsn=dsn)
            server.sql(f"GRANT USAGE ON SEQUENCE scheduled_tasks_id_seq TO {role}", dsn=dsn)
            assert self.heard(dsn, server, self.INSERT.format("public."), as_role=role)
        finally:
            server.sql(f"DROP OWNED BY {role}", dsn=dsn)
            server.sql(f"DROP ROLE {role}")


def test_no_index_stands_in_the_way_of_an_update_of_a_supervisor(server: Server, dsn: str) -> None:
    """They are updated many times a second; a row version that needs no index entry is cleaned up by the next one."""
    columns = server.sql(
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)"
        " WHERE indrelid = 'pgsched_supervisors'::regclass",
        dsn=dsn,
    )
    assert columns == [("id",)]


def test_f52_no_key_or_counter_that_grows_is_32_bits_wide(server: Server, dsn: str) -> None:
    """F52: what grows with traffic is a bigint; what is left is bounded by its meaning."""
    narrow = server.sql(
        "SELECT attrelid::regclass || '.' || attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
        " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0"
        " AND atttypid IN ('int4'::regtype, 'int2'::regtype) AND NOT relispartition ORDER BY 1",
        dsn=dsn,
    )
    assert [name for (name,) in narrow] == [
        "pgsched_failures.attempt",
        "pgsched_failures.exit_code",
        "pgsched_failures.signal",
        "pgsched_schema.version",
        "pgsched_supervisors.processes",
        "pgsched_supervisors.wanted_processes",
        "scheduled_tasks.max_retries",
        "scheduled_tasks.priority",
        "scheduled_tasks.retry_count",
    ]
    sequences = server.sql("SELECT DISTINCT data_type::text FROM pg_sequences", dsn=dsn)
    assert sequences == [("bigint",)]


def test_f56_sql_ascii_database(server: Server) -> None:
    """F56: text is text there too."""
    name = "pgsched_test_sql_ascii"
    server.sql(f"DROP DATABASE IF EXISTS {name}")
    server.sql(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    try:
        schema.migrate(server.dsn_for(name))
        require_sync(server.dsn_for(name))
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")
