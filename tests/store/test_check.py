"""What `pgsched check` finds on real servers, databases and roles; every check has a case in which it is silent."""

import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsched.errors import DatabaseError
from pgsched.store import check
from pgsched.store.check import Problem, problems
from pgsched.store.schema import migrate
from pgsched.supervisor.unwritten import BATCH
from tests.support import Server, database_of, eventually

Connect = Callable[..., psycopg.Connection]
TABLES = "scheduled_tasks, scheduled_tasks_live, scheduled_tasks_ended, pgsched_supervisors, pgsched_failures"
EXPECTED_HERE = ("fsync is off", "encoding")
"""What the server of the tests is told, or where it runs."""


def found(connection: psycopg.Connection) -> list[Problem]:
    """The problems, without those that the tests' own server has on purpose."""
    return [problem for problem in problems(connection) if not any(word in problem.text for word in EXPECTED_HERE)]


def the_one(connection: psycopg.Connection) -> Problem:
    (problem,) = found(connection)
    assert "\n" not in problem.text + problem.cure
    assert problem.cure
    return problem


@pytest.fixture
def role(server: Server, dsn: str) -> Iterator[str]:
    """A role with a name that has to be quoted, and without any right."""
    name = f"Check {database_of(dsn)}"
    server.sql(f'CREATE ROLE "{name}" LOGIN', dsn=dsn)
    yield name
    server.sql(f'DROP OWNED BY "{name}"', dsn=dsn)
    server.sql(f'DROP ROLE "{name}"', dsn=dsn)


class TestSound:
    def test_nothing_is_found(self, connect: Connect) -> None:
        assert found(connect()) == []

    def test_a_role_with_the_rights_that_are_named_has_no_problem(
        self, server: Server, dsn: str, connect: Connect, role: str
    ) -> None:
        """No superuser and no more rights are needed, and the cures are statements that cure."""
        connection = connect()
        connection.execute(f'SET ROLE "{role}"')
        lacking = found(connection)
        assert {problem.level for problem in lacking} == {"error"}
        assert len(lacking) == 9
        for problem in lacking:
            server.sql(problem.cure, dsn=dsn)
        assert found(connection) == []

    def test_by_dsn(self, dsn: str) -> None:
        assert [problem for problem in check.check(dsn) if problem.level == "error"] == []

    def test_a_server_that_is_not_there(self) -> None:
        with pytest.raises(DatabaseError) as caught:
            check.check("host=127.0.0.1 port=1 password=s3cr3t", timeout=2)
        assert "s3cr3t" not in str(caught.value)


class TestSchema:
    def test_rows_that_row_level_security_hides(self, server: Server, dsn: str, connect: Connect, role: str) -> None:
        connection = connect()
        connection.execute(f'SET ROLE "{role}"')
        for problem in found(connection):
            server.sql(problem.cure, dsn=dsn)
        server.sql("ALTER TABLE scheduled_tasks_live ENABLE ROW LEVEL SECURITY", dsn=dsn)
        hidden = the_one(connection)
        assert (hidden.level, "hides all rows of table scheduled_tasks_live" in hidden.text) == ("error", True)
        server.sql(f'CREATE POLICY own ON scheduled_tasks_live TO "{role}" USING (true)', dsn=dsn)
        assert the_one(connection).level == "note"
        assert found(connect()) == [], "it does not concern a superuser"
        server.sql(hidden.cure, dsn=dsn)
        assert found(connection) == []

    def test_no_tables(self, empty_dsn: str) -> None:
        with psycopg.connect(empty_dsn, autocommit=True) as connection:
            problem = the_one(connection)
        assert problem.level == "error"
        assert problem.text.startswith("there are no pgsched tables with search_path")
        assert problem.cure == "run `pgsched migrate`"

    @pytest.mark.parametrize(("version", "cure"), [(99, "upgrade pgsched"), (0, "run `pgsched migrate`")])
    def test_another_version(self, server: Server, dsn: str, connect: Connect, version: int, cure: str) -> None:
        server.sql("DELETE FROM pgsched_schema WHERE version > 1", dsn=dsn)
        server.sql("UPDATE pgsched_schema SET version = %s", version, dsn=dsn)
        problem = the_one(connect())
        assert (problem.level, problem.cure) == ("error", cure)

    def test_one_right_of_each_kind(self, server: Server, dsn: str, connect: Connect, role: str) -> None:
        server.sql(f'GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLES} TO "{role}"', dsn=dsn)
        server.sql(f'GRANT SELECT ON pgsched_schema TO "{role}"', dsn=dsn)
        server.sql(f'GRANT EXECUTE ON FUNCTION pgsched_make_range, pgsched_drop_range TO "{role}"', dsn=dsn)
        connection = connect()
        connection.execute(f'SET ROLE "{role}"')
        assert the_one(connection) == Problem(
            "error",
            f"role {role} lacks the right to USAGE on sequence scheduled_tasks_id_seq",
            f'GRANT USAGE ON SEQUENCE scheduled_tasks_id_seq TO "{role}"',
        )
        server.sql(f'GRANT USAGE ON SEQUENCE scheduled_tasks_id_seq TO "{role}"', dsn=dsn)
        server.sql(f'REVOKE INSERT, DELETE ON pgsched_supervisors FROM "{role}"', dsn=dsn)
        assert the_one(connection).cure == f'GRANT INSERT, DELETE ON pgsched_supervisors TO "{role}"'

    @pytest.mark.parametrize(
        ("change", "level", "words"),
        [
            ("DROP INDEX scheduled_tasks_due", "error", "index scheduled_tasks_due is missing or invalid"),
            ("DROP INDEX scheduled_tasks_key", "error", "index scheduled_tasks_key is missing or invalid"),
            (
                "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'scheduled_tasks_held'::regclass",
                "error",
                "index scheduled_tasks_held is missing or invalid",
            ),
            ("DROP TRIGGER pgsched_wake ON scheduled_tasks", "warning", "trigger pgsched_wake"),
            ("ALTER TABLE scheduled_tasks DISABLE TRIGGER pgsched_wake", "warning", "trigger pgsched_wake"),
            (
                "ALTER TABLE scheduled_tasks_live SET (autovacuum_enabled = off)",
                "warning",
                "autovacuum is off for table scheduled_tasks_live",
            ),
            (
                "ALTER TABLE scheduled_tasks_ended_rest SET (autovacuum_enabled = off)",
                "warning",
                "autovacuum is off for table scheduled_tasks_ended_rest",
            ),
            ("GRANT CREATE ON SCHEMA public TO PUBLIC", "warning", "PUBLIC may create objects in schema public"),
            ("DROP INDEX scheduled_tasks_ended_id", "error", "index scheduled_tasks_ended_id is missing or invalid"),
        ],
    )
    def test_what_somebody_took_away(
        self, server: Server, dsn: str, connect: Connect, change: str, level: str, words: str
    ) -> None:
        server.sql(change, dsn=dsn)
        problem = the_one(connect())
        assert problem.level == level
        assert words in problem.text


class TestVacuum:
    def test_dead_rows_that_autovacuum_does_not_keep_up_with(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "DEAD_ROWS", 50)
        connection, holder = connect(), connect(autocommit=False)
        # Autovacuum passes over a table that somebody holds so; changes of its rows need not wait.
        holder.execute("LOCK TABLE scheduled_tasks_live IN SHARE UPDATE EXCLUSIVE MODE")
        connection.execute(
            "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'a', now() FROM generate_series(1, 100)"
        )
        update = "UPDATE scheduled_tasks SET priority = priority + 1; SELECT pg_stat_force_next_flush()"
        connection.execute(update)
        assert found(connection) == [], "as many as live ones are none too many"
        for _ in range(3):
            connection.execute(update)
        problem = the_one(connection)
        assert problem.level == "warning"
        assert re.match(r"table scheduled_tasks_live has \d+ dead rows beside \d+ living ones, and it ", problem.text)
        assert "autovacuum_naptime (now " in problem.cure
        holder.rollback()
        connection.execute("VACUUM scheduled_tasks_live")
        connection.execute("SELECT pg_stat_force_next_flush()")
        assert found(connection) == []


class TestHome:
    """The schema that the tables are in."""

    def test_somebody_else_may_create_there(self, server: Server, dsn: str, connect: Connect, role: str) -> None:
        server.sql(f'GRANT CREATE ON SCHEMA public TO "{role}"', dsn=dsn)
        problem = the_one(connect())
        assert problem.text.startswith(f'"{role}" may create objects in schema public: ')
        server.sql(problem.cure, dsn=dsn)
        assert found(connect()) == []

    def test_their_owner_may_not(self, server: Server, dsn: str, connect: Connect, role: str) -> None:
        server.sql(f'ALTER TABLE scheduled_tasks OWNER TO "{role}"', dsn=dsn)
        problem = the_one(connect())
        assert problem.text.startswith(f'role "{role}", who owns the tables, may not create another in schema public: ')
        server.sql(problem.cure, dsn=dsn)
        assert found(connect()) == []

    def test_it_has_another_name_now(self, connect: Connect) -> None:
        connection = connect()
        connection.execute('ALTER SCHEMA public RENAME TO "My App"; SET search_path = "My App"')
        insert = "INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('a', now())"
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute(insert)
        problems = found(connection)
        assert {problem.level for problem in problems} == {"error"}
        assert any("pgsched_wake() looks for the tables in another schema" in problem.text for problem in problems)
        for problem in problems:
            connection.execute(problem.cure.encode())
        assert found(connection) == []
        connection.execute(insert)
        connection.execute("SELECT pgsched_make_range('1 day', '1 day'), pgsched_drop_range('1 day'), pgsched_split(2)")


def test_a_claim_may_hold_as_many_locks_as_are_reckoned_with() -> None:
    assert check.CLAIM_LOCKS == BATCH


class TestSession:
    @pytest.mark.parametrize(
        ("setting", "level", "words"),
        [
            ("default_transaction_read_only = on", "error", "are read-only"),
            ("synchronous_commit = off", "note", "synchronous_commit is off"),
        ],
    )
    def test_a_setting(self, connect: Connect, setting: str, level: str, words: str) -> None:
        connection = connect()
        connection.execute(f"SET {setting}")
        problem = the_one(connection)
        assert problem.level == level
        assert words in problem.text

    @pytest.mark.parametrize("setting", ["quote_all_identifiers = on", "extra_float_digits = -15"])
    def test_how_the_role_has_things_written_does_not_matter(self, connect: Connect, setting: str) -> None:
        connection = connect()
        connection.execute(f"SET {setting}")
        assert found(connection) == []

    @pytest.mark.parametrize(
        ("shift", "words"), [("1 hour", "3,600 s behind"), ("-90 seconds", "90 s ahead of"), ("1 second", None)]
    )
    def test_f55_a_host_with_another_time(self, connect: Connect, shift: str, words: str | None) -> None:
        connection = connect()
        connection.execute(
            "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
            f"$$ SELECT pg_catalog.clock_timestamp() + interval '{shift}' $$; SET search_path = public, pg_catalog"
        )
        if words is None:
            assert found(connection) == []
        else:
            assert words in the_one(connection).text

    def test_a_standby(self, connect: Connect) -> None:
        connection = connect()
        connection.execute(
            "CREATE FUNCTION pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'; "
            "SET search_path = public, pg_catalog; SET default_transaction_read_only = on"
        )
        problem = the_one(connection)
        assert (problem.level, problem.cure) == ("error", "connect to the primary")

    def test_an_old_server(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = connect()
        monkeypatch.setattr(check, "OLDEST_SERVER", connection.info.server_version // 10000 + 1)
        problem = the_one(connection)
        assert problem.level == "error"
        assert problem.text.startswith(f"the server is PostgreSQL {connection.info.server_version // 10000}.")

    def test_f39_a_pooler_greets_with_another_process_id(self, connect: Connect) -> None:
        connection = connect()
        connection.execute(
            "CREATE FUNCTION pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1'; "
            "SET search_path = public, pg_catalog"
        )
        pooler = [problem for problem in found(connection) if "pooler" in problem.text]
        assert [problem.level for problem in pooler] == ["note"]
        assert "--pooled" in pooler[0].cure

    @pytest.mark.parametrize(
        ("pooled", "isolation", "levels"),
        [
            (True, "repeatable read", ["warning"]),
            (True, "serializable", ["warning"]),
            (True, "read committed", []),
            (False, "serializable", []),
        ],
    )
    def test_behind_a_pooler_nothing_puts_a_stricter_isolation_back(
        self, connect: Connect, pooled: bool, isolation: str, levels: list[str]
    ) -> None:
        connection = connect()
        connection.execute(f"SET default_transaction_isolation = '{isolation}'")
        if pooled:
            connection.execute(
                "CREATE FUNCTION pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1'; "
                "SET search_path = public, pg_catalog"
            )
        stricter = [problem for problem in found(connection) if isolation in problem.text]
        assert [problem.level for problem in stricter] == levels

    @pytest.mark.parametrize(
        ("encoding", "words"), [("SQL_ASCII", "checks no text"), ("LATIN1", "cannot store every character")]
    )
    def test_f56_another_encoding(self, server: Server, encoding: str, words: str) -> None:
        name = f"check_{encoding.lower()}"
        server.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        dsn = server.dsn_for(name)
        try:
            migrate(dsn)
            texts = [problem.text for problem in check.check(dsn)]
        finally:
            server.drop(dsn)
        assert [text for text in texts if "encoding" in text] == [
            f"database {name} has encoding {encoding}, which {words}"
        ]


class TestSnapshots:
    def test_f50_a_transaction_that_is_open_for_long(self, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        holder = connect(autocommit=False, application_name="report\ntool")
        holder.execute("SELECT 1 FROM scheduled_tasks")
        connection = connect()
        assert found(connection) == []
        monkeypatch.setattr(check, "OLD_SECONDS", 0.0)
        problem = the_one(connection)
        assert problem.level == "warning"
        assert f"session {holder.info.backend_pid} (role " in problem.text
        assert "has had a transaction open for 0 s" in problem.text
        connection.execute(problem.cure.removeprefix("end it: "))
        assert found(connection) == []

    def test_f50_a_transaction_in_another_database_is_no_matter(
        self, server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "OLD_SECONDS", 0.0)
        with psycopg.connect(server.dsn) as elsewhere:
            elsewhere.execute("SELECT 1 FROM pg_class")
            assert found(connect()) == []

    def test_f50_another_roles_snapshot_is_seen_without_rights(
        self, server: Server, dsn: str, connect: Connect, role: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder = connect(autocommit=False)
        holder.execute("SELECT pg_current_xact_id()")
        for _ in range(5):
            server.sql("SELECT pg_current_xact_id()", dsn=dsn)
        monkeypatch.setattr(check, "OLD_TRANSACTIONS", 3)
        with psycopg.connect(make_conninfo(dsn, user=role), autocommit=True) as connection:
            texts = [problem.text for problem in found(connection) if "session" in problem.text]
        holder.rollback()
        assert len(texts) == 1
        assert "transactions: dead rows pile up" in texts[0]


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    """A server of its own, for settings that only a restart changes."""
    from pgsched.ops import embedded

    place = Path(tempfile.mkdtemp(prefix="pgsched-check-"))
    place.chmod(0o711)
    settings = {
        "fsync": "off",
        "autovacuum": "off",
        "max_connections": "20",
        "max_locks_per_transaction": "10",
        "max_prepared_transactions": "2",
        "wal_level": "logical",
    }
    handle = embedded.start(place / "server", settings=settings)
    try:
        migrate(handle.dsn)
        yield handle.dsn
    finally:
        handle.close()
        shutil.rmtree(place)


class TestServers:
    def test_its_settings(self, other: str) -> None:
        texts = [problem.text for problem in check.check(other)]
        assert [text.split(":")[0] for text in texts] == [
            "the server has room for about 220 locks, and one claim may take 1,500",
            "autovacuum is off on the server",
            "fsync is off",
        ]

    def test_a_forgotten_prepared_transaction(self, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check, "OLD_SECONDS", 0.0)
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
            texts = [problem.text for problem in problems(connection) if "prepared" in problem.text]
            connection.execute("ROLLBACK PREPARED 'forgotten'")
            assert len(texts) == 1
            assert not [problem.text for problem in problems(connection) if "prepared" in problem.text]
        assert texts[0].startswith("prepared transaction forgotten (role ")

    def test_an_insert_that_wakes_a_supervisor_is_not_prepared(self, other: str) -> None:
        """Documented in docs/limits.md, with the two ways around it."""
        insert = "BEGIN; INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('a', now()); PREPARE TRANSACTION 'new'"
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO pgsched_supervisors"
                " (host, boot_id, pid_namespace, pid, started_ticks, processes, listening, lease_until)"
                " VALUES ('h', 'b', 1, 1, 1, 1, true, now() + interval '1 minute')"
            )
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
                connection.execute(insert)
            connection.execute("ALTER TABLE scheduled_tasks DISABLE TRIGGER pgsched_wake")
            connection.execute(insert)
            connection.execute("ROLLBACK PREPARED 'new'")
            connection.execute("ALTER TABLE scheduled_tasks ENABLE TRIGGER pgsched_wake")
            connection.execute("UPDATE pgsched_supervisors SET listening = false")
            connection.execute(insert)
            connection.execute("ROLLBACK PREPARED 'new'")
            connection.execute("DELETE FROM pgsched_supervisors")

    def test_a_forgotten_slot(self, other: str) -> None:
        """Its reader is a standby that sent the age of its oldest query, and was switched off."""
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
            assert not [problem.text for problem in problems(connection) if "slot" in problem.text]
            _feed_back(other, "forgotten")
            texts = [problem.text for problem in problems(connection) if "slot" in problem.text]
            connection.execute("SELECT pg_drop_replication_slot('forgotten')")
        assert len(texts) == 1
        assert texts[0].startswith("replication slot forgotten has held back old rows for ")


def _feed_back(dsn: str, slot: str) -> None:
    """Speak the replication protocol just enough to leave an xmin in the slot, as hot_standby_feedback does."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        xmin = int(connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()[0])  # type: ignore[index]
        lsn = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0]  # type: ignore[index]
        sender = psycopg.pq.PGconn.connect(make_conninfo(dsn, replication="true").encode())
        result = sender.exec_(f"START_REPLICATION SLOT {slot} PHYSICAL {lsn}".encode())
        assert result.status == psycopg.pq.ExecStatus.COPY_BOTH, result.error_message
        sender.put_copy_data(struct.pack("!cqIIII", b"h", 0, xmin, 0, 0, 0))
        sender.flush()
        seen = "SELECT xmin IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s"
        eventually(lambda: connection.execute(seen, [slot]).fetchone() == (True,))
        sender.finish()
        eventually(
            lambda: (
                connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
                == (False,)
            )
        )
