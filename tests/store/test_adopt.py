"""Adopting a table made with the article's schema: every row survives, and nothing is lost silently."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsched.errors import DatabaseError, SchemaError
from pgsched.store import schema
from pgsched.store.schema import LATEST, MIGRATIONS
from tests.article import text
from tests.support import Server, eventually

ARTICLE = text("snippet_1")
ROWS = """
INSERT INTO scheduled_tasks (task_type, payload, run_at, status, max_retries, retry_count, error_log,
                             created_at, updated_at)
SELECT 'type ' || n % 3, jsonb_build_object('n', n, 'text', 'é' || chr(8364)),
       '2024-01-01 12:00+02'::timestamptz + n * interval '1 day',
       (ARRAY['queued', 'processing', 'completed', 'failed', 'cancelled', 'paused', 'QUEUED', ''])[1 + n % 8],
       n % 5, n % 7, CASE WHEN n % 2 = 0 THEN 'error ' || n END, '2024-01-01Z', '2024-02-02Z'
FROM generate_series(0, 79) n
"""
INSERT = "INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('later', now()) RETURNING id"
COLUMNS = "id, task_type, payload, run_at, status, max_retries, retry_count, error_log, created_at, updated_at"


class Article:
    """A database that holds the article's table."""

    def __init__(self, server: Server, dsn: str) -> None:
        self.server = server
        self.dsn = dsn
        self.sql(ARTICLE)

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.server.sql(query, *parameters, dsn=self.dsn)

    def value(self, query: str, *parameters: object) -> Any:
        return self.sql(query, *parameters)[0][0]

    def rows(self) -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT {COLUMNS} FROM scheduled_tasks ORDER BY id")

    def migrate(self) -> list[str]:
        return schema.migrate(self.dsn)

    def refuse(self, *texts: str) -> None:
        """`migrate` refuses in one line that holds the texts, and changes nothing."""
        before = self.catalogue()
        with pytest.raises(SchemaError) as caught:
            self.migrate()
        assert [text for text in texts if text not in str(caught.value)] == [], str(caught.value)
        assert "\n" not in str(caught.value)
        assert self.catalogue() == before

    def catalogue(self) -> list[tuple[Any, ...]]:
        return self.sql("SELECT relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1")


@pytest.fixture
def article(server: Server, empty_dsn: str) -> Article:
    return Article(server, empty_dsn)


@pytest.fixture
def role(server: Server, article: Article) -> Iterator[str]:
    name = f"pgsched_test_role_{server.value('SELECT pg_backend_pid()')}"
    server.sql(f"CREATE ROLE {name}")
    yield name
    article.sql(f"DROP OWNED BY {name} CASCADE")
    server.sql(f"DROP ROLE {name}")


def test_rows_survive_whatever_their_status(article: Article) -> None:
    article.sql(ROWS)
    before = article.rows()
    assert len(before) == 80
    assert article.migrate() == [
        *(f"applied {name} in schema public" for name in MIGRATIONS.values()),
        "adopted table scheduled_tasks with 80 rows",
    ]
    assert article.rows() == before
    places = article.sql("SELECT DISTINCT tableoid::regclass::text, status FROM scheduled_tasks ORDER BY 1, 2")
    assert {status for place, status in places if place == "scheduled_tasks_live"} == {"queued", "processing"}
    ours = "queue, priority, fence, claimed_by, started_at, result, timeout, unique_key"
    assert article.sql(f"SELECT DISTINCT {ours} FROM scheduled_tasks") == [
        ("default", 0, 0, None, None, None, None, None)
    ]


def test_ended_rows_end_at_their_last_update(article: Article) -> None:
    article.sql(ROWS)
    article.migrate()
    found = article.sql("SELECT DISTINCT status, finished_at = updated_at FROM scheduled_tasks ORDER BY 1")
    assert {status for status, same in found if same} == {"completed", "failed", "cancelled"}
    assert {same for status, same in found if status not in ("completed", "failed", "cancelled")} == {None}


def test_empty_table(article: Article) -> None:
    assert article.migrate()[-1] == "adopted table scheduled_tasks with 0 rows"
    assert article.value(INSERT) == 1


def test_old_table_and_its_indexes_are_gone(article: Article) -> None:
    article.migrate()
    left = {name for name, _ in article.catalogue()}
    assert left.isdisjoint({"idx_tasks_poll", "idx_tasks_stuck", "scheduled_tasks_pkey", "pgsched_adopted"})


def test_planner_knows_of_the_rows(article: Article) -> None:
    article.sql(ROWS)
    article.migrate()
    assert article.value("SELECT reltuples FROM pg_class WHERE oid = 'scheduled_tasks_ended'::regclass") == 60


def test_second_migrate_leaves_the_adopted_rows_alone(article: Article) -> None:
    article.sql(ROWS)
    article.migrate()
    before = article.rows()
    assert article.migrate() == [f"schema public is up to date (version {LATEST})"]
    assert article.rows() == before


class TestSequence:
    def test_goes_on_where_it_was(self, article: Article) -> None:
        article.sql(ROWS)
        article.sql("DELETE FROM scheduled_tasks WHERE id > 10")
        article.sql("ALTER SEQUENCE scheduled_tasks_id_seq INCREMENT BY 3")
        article.migrate()
        assert article.value(INSERT) == 83
        assert (
            article.value("SELECT pg_get_serial_sequence('scheduled_tasks', 'id')") == "public.scheduled_tasks_id_seq"
        )

    def test_goes_past_ids_that_were_inserted_by_hand(self, article: Article) -> None:
        article.sql(ROWS)
        article.sql("INSERT INTO scheduled_tasks (id, task_type, run_at) VALUES (5000000000, 'a', now())")
        article.migrate()
        assert article.value(INSERT) == 5_000_000_001

    @pytest.mark.parametrize(
        "definition",
        [
            "integer DEFAULT nextval('other_name_seq')",
            "smallint DEFAULT nextval('other_name_seq')",
            "bigint GENERATED ALWAYS AS IDENTITY",
            "integer GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME other_name_seq)",
        ],
    )
    def test_other_id_is_widened(self, article: Article, definition: str) -> None:
        owned = "other_name_seq" in definition and "DEFAULT nextval" in definition
        article.sql("DROP TABLE scheduled_tasks")
        if owned:
            article.sql(f"CREATE SEQUENCE other_name_seq AS {definition.partition(' ')[0]}")
        article.sql(ARTICLE.replace("BIGSERIAL", definition))
        if owned:
            article.sql("ALTER SEQUENCE other_name_seq OWNED BY scheduled_tasks.id")
        article.sql(ROWS)
        article.sql("DELETE FROM scheduled_tasks WHERE id > 10")
        article.migrate()
        assert article.value(INSERT) == 81
        article.sql("SELECT setval('scheduled_tasks_id_seq', 3000000000)")
        assert article.value(INSERT) == 3_000_000_001
        assert "other_name_seq" not in dict(article.catalogue())

    def test_id_without_a_sequence_gets_one(self, article: Article) -> None:
        article.sql("DROP TABLE scheduled_tasks")
        article.sql(ARTICLE.replace("BIGSERIAL", "integer"))
        article.sql("INSERT INTO scheduled_tasks (id, task_type, run_at) VALUES (7, 'a', now())")
        article.migrate()
        assert article.value(INSERT) == 8


class TestRepairs:
    """What the article forbids, and somebody's changed copy of its table may hold."""

    def test_negative_counters_are_clamped(self, article: Article) -> None:
        article.sql(
            "INSERT INTO scheduled_tasks (task_type, run_at, max_retries, retry_count) VALUES ('a', now(), -1, -5)"
        )
        article.migrate()
        assert article.sql("SELECT max_retries, retry_count FROM scheduled_tasks") == [(0, 0)]

    def test_missing_values_become_the_defaults_and_a_missing_status_runs_nowhere(self, article: Article) -> None:
        for column in ("payload", "status", "max_retries", "retry_count", "created_at", "updated_at"):
            article.sql(f"ALTER TABLE scheduled_tasks ALTER {column} DROP NOT NULL")
        article.sql(
            "INSERT INTO scheduled_tasks (task_type, run_at, payload, status, max_retries, retry_count, created_at,"
            " updated_at) VALUES ('a', now(), NULL, NULL, NULL, NULL, NULL, '2024-01-01Z')"
        )
        article.migrate()
        query = "SELECT payload, status, max_retries, retry_count, created_at = updated_at FROM scheduled_tasks"
        assert article.sql(query) == [({}, "unknown", 3, 0, True)]

    def test_text_and_json_columns_are_moved(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks ALTER task_type TYPE text, ALTER payload DROP DEFAULT")
        article.sql("ALTER TABLE scheduled_tasks ALTER payload TYPE json USING payload::json")
        article.sql("""INSERT INTO scheduled_tasks (task_type, run_at, payload) VALUES ('a', now(), '{"b": 1}')""")
        article.migrate()
        assert article.sql("SELECT payload FROM scheduled_tasks") == [({"b": 1},)]

    def test_row_that_does_not_fit_is_refused(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks ALTER task_type TYPE text")
        article.sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES (repeat('x', 65), now())")
        article.refuse("a row of table scheduled_tasks cannot be adopted", "too long")

    def test_row_without_due_time_is_refused(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks ALTER run_at DROP NOT NULL")
        article.sql("INSERT INTO scheduled_tasks (task_type) VALUES ('a')")
        article.refuse('null value in column "run_at"')


FUNCTION = "CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
OBSTACLES = [
    ("CREATE VIEW overview AS SELECT status, count(*) FROM scheduled_tasks GROUP BY 1", "view overview"),
    ("CREATE MATERIALIZED VIEW mat AS SELECT id FROM scheduled_tasks", "materialized view mat"),
    ("CREATE TABLE child (task bigint REFERENCES scheduled_tasks)", "constraint child_task_fkey on table child"),
    ("CREATE TABLE heir () INHERITS (scheduled_tasks)", "table heir"),
    (
        "CREATE TABLE parent (id bigint NOT NULL); ALTER TABLE scheduled_tasks INHERIT parent",
        "inheritance from table parent",
    ),
    ("ALTER TABLE scheduled_tasks ADD CHECK (max_retries < 10)", "scheduled_tasks_max_retries_check"),
    ("ALTER TABLE scheduled_tasks ADD UNIQUE (task_type, run_at)", "scheduled_tasks_task_type_run_at_key"),
    ("CREATE UNIQUE INDEX once ON scheduled_tasks (task_type, run_at) WHERE status = 'queued'", "index once"),
    ("CREATE RULE quiet AS ON DELETE TO scheduled_tasks DO INSTEAD NOTHING", "rule quiet"),
    ("CREATE POLICY mine ON scheduled_tasks", "policy mine"),
    ("ALTER TABLE scheduled_tasks ENABLE ROW LEVEL SECURITY", "row level security"),
    ("CREATE PUBLICATION feed FOR TABLE scheduled_tasks", "publication feed"),
    (
        "CREATE FUNCTION f(t scheduled_tasks) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function f(scheduled_tasks)",
    ),
    (
        FUNCTION + "CREATE TRIGGER audit AFTER INSERT ON scheduled_tasks FOR EACH ROW EXECUTE FUNCTION g()",
        "trigger audit",
    ),
    ("CREATE TABLE holder (t scheduled_tasks)", "column t of table holder"),
]


class TestRefusals:
    @pytest.mark.parametrize(("statement", "named"), OBSTACLES)
    def test_what_hangs_on_the_table_is_named(self, article: Article, statement: str, named: str) -> None:
        article.sql(ROWS)
        article.sql(statement)
        article.refuse(named, "cannot be adopted while it has", "after `pgsched migrate`")
        assert article.value("SELECT count(*) FROM scheduled_tasks") == 80

    def test_all_obstacles_are_named_at_once(self, article: Article) -> None:
        article.sql(
            "CREATE VIEW one AS SELECT id FROM scheduled_tasks; CREATE VIEW two AS SELECT id FROM scheduled_tasks"
        )
        article.refuse("view one, view two")

    def test_columns_of_its_own_are_named(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks ADD tenant int, ADD colour text")
        article.refuse("columns of its own: tenant, colour")

    def test_missing_and_changed_columns_are_named(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks DROP payload, ALTER run_at TYPE timestamp")
        article.refuse("no column payload", "run_at (timestamp without time zone instead of timestamp with time zone)")

    def test_dropped_column_is_no_column(self, article: Article) -> None:
        article.sql("ALTER TABLE scheduled_tasks ADD tenant int")
        article.sql("ALTER TABLE scheduled_tasks DROP tenant")
        assert article.migrate()[-1] == "adopted table scheduled_tasks with 0 rows"

    def test_other_table_of_the_name(self, server: Server, empty_dsn: str) -> None:
        server.sql("CREATE TABLE scheduled_tasks (id int, name text)", dsn=empty_dsn)
        with pytest.raises(SchemaError, match=r"no column task_type, payload.*columns of its own: name"):
            schema.migrate(empty_dsn)

    def test_table_that_is_in_use(self, article: Article) -> None:
        with psycopg.connect(article.dsn) as other:
            other.execute("LOCK TABLE scheduled_tasks IN ROW EXCLUSIVE MODE")
            with pytest.raises(DatabaseError, match=r"cannot lock the tables within 0.1 s"):
                schema.migrate(article.dsn, timeout=0.1)
        assert article.migrate()

    def test_column_that_comes_while_it_waits_for_the_table(
        self, article: Article, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schema, "LOCK_WAIT", 60.0)
        with psycopg.connect(article.dsn) as other, ThreadPoolExecutor() as threads:
            other.execute("ALTER TABLE scheduled_tasks ADD tenant int")
            migrating = threads.submit(schema.migrate, article.dsn, timeout=60)
            eventually(lambda: server.waits_for_lock(article.dsn))
            other.commit()
            with pytest.raises(SchemaError, match="columns of its own: tenant"):
                migrating.result(60)


def test_plain_indexes_of_the_user_are_named(article: Article) -> None:
    article.sql("CREATE INDEX by_type ON scheduled_tasks (task_type)")
    assert article.migrate()[-1] == "dropped its indexes by_type: create them anew if they are needed"


def test_insert_that_waits_goes_into_the_new_table(article: Article, server: Server) -> None:
    article.sql(ROWS)
    with ThreadPoolExecutor() as threads, psycopg.connect(article.dsn) as reader:
        # The reader holds the migration up after it has asked for its lock, so that the insert queues up behind it.
        reader.execute("SELECT count(*) FROM scheduled_tasks")
        migrating = threads.submit(article.migrate)
        eventually(lambda: server.waits_for_lock(article.dsn))
        inserting = threads.submit(article.value, INSERT)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"
        eventually(lambda: server.value(waiting) == 2)
        reader.rollback()
        assert migrating.result(10)[-1] == "adopted table scheduled_tasks with 80 rows"
        assert article.value("SELECT status FROM scheduled_tasks_live WHERE id = %s", inserting.result(10)) == "queued"


class TestRights:
    def test_grants_are_kept(self, article: Article, role: str) -> None:
        article.sql(f"GRANT SELECT, INSERT ON scheduled_tasks TO {role} WITH GRANT OPTION")
        article.sql(f"GRANT UPDATE (status, updated_at) ON scheduled_tasks TO {role}")
        article.sql("GRANT SELECT ON scheduled_tasks TO PUBLIC")
        article.migrate()
        check = "SELECT has_table_privilege(%s, %s, %s)"
        for table in ("scheduled_tasks", "scheduled_tasks_live", "scheduled_tasks_ended"):
            assert article.value(check, role, table, "SELECT WITH GRANT OPTION, INSERT WITH GRANT OPTION")
            assert not article.value(check, role, table, "UPDATE")
            assert article.value("SELECT has_column_privilege(%s, %s, 'status', 'UPDATE')", role, table)
        dsn = make_conninfo(article.dsn, options=f"-c role={role}")
        assert article.server.value(INSERT, dsn=dsn) == 1
        acl = "SELECT relacl::text FROM pg_class WHERE oid = 'scheduled_tasks'::regclass"
        assert "=r/" in article.value(acl).split(",")[-1] or ",=r/" in article.value(acl)

    def test_tables_belong_to_the_owner_of_the_adopted_one(self, article: Article, role: str) -> None:
        article.sql(f"ALTER TABLE scheduled_tasks OWNER TO {role}")
        article.migrate()
        owners = article.sql(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " UNION SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'pgsched_wake'"
        )
        assert owners == [(role,)]
        assert (
            article.value("SELECT pg_get_serial_sequence('scheduled_tasks', 'id')") == "public.scheduled_tasks_id_seq"
        )

    def test_owner_without_superuser_can_migrate(self, article: Article, role: str) -> None:
        article.sql(ROWS)
        article.sql(f"ALTER TABLE scheduled_tasks OWNER TO {role}; GRANT CREATE ON SCHEMA public TO {role}")
        lines = schema.migrate(make_conninfo(article.dsn, options=f"-c role={role}"))
        assert lines[-1] == "adopted table scheduled_tasks with 80 rows"

    def test_stranger_is_refused(self, article: Article, role: str) -> None:
        article.sql(f"GRANT CREATE ON SCHEMA public TO {role}")
        with pytest.raises(DatabaseError, match="permission denied for table scheduled_tasks"):
            schema.migrate(make_conninfo(article.dsn, options=f"-c role={role}"))
