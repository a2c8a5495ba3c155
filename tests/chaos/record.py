"""What happened to the rows: triggers write every transition into tables of the storm's own, in its transaction.

Times are turned into seconds of this host's monotonic clock, by which the journal of executions and the record of
harms also go.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.keeping import AGED
from tests.chaos.ledger import Entry, Execution, FailureRow, Row, Tenure

TABLES = """
    CREATE TABLE ledger (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        place text NOT NULL, op text NOT NULL, id bigint NOT NULL,
        before text, after text, fence_before bigint, fence_after bigint,
        owner_before bigint, owner_after bigint, retries_before integer, retries_after integer,
        transaction xid8 NOT NULL DEFAULT pg_current_xact_id()
    );
    CREATE FUNCTION note_task() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF coalesce(new.queue, old.queue) = '{aged}' THEN
            RETURN NULL;
        END IF;
        INSERT INTO ledger (place, op, id, before, after, fence_before, fence_after, owner_before, owner_after,
                            retries_before, retries_after)
        VALUES (tg_argv[0], lower(tg_op), coalesce(new.id, old.id), old.status, new.status, old.fence, new.fence,
                old.claimed_by, new.claimed_by, old.retry_count, new.retry_count);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON scheduled_tasks_live
        FOR EACH ROW EXECUTE FUNCTION note_task('live');
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON scheduled_tasks_ended
        FOR EACH ROW EXECUTE FUNCTION note_task('ended');
    CREATE TABLE pruned (LIKE scheduled_tasks);
    CREATE FUNCTION note_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO pruned SELECT old.*;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_pruned AFTER DELETE ON scheduled_tasks_ended
        FOR EACH ROW EXECUTE FUNCTION note_pruned();
    CREATE TABLE failed (LIKE pgsched_failures);
    CREATE FUNCTION note_failure() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO failed SELECT new.*;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT ON pgsched_failures FOR EACH ROW EXECUTE FUNCTION note_failure();
    CREATE TABLE tenures (id bigint NOT NULL, pid bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE FUNCTION note_tenure() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO tenures (id, pid) VALUES (new.id, new.pid);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT ON pgsched_supervisors FOR EACH ROW EXECUTE FUNCTION note_tenure();
"""


class Record:
    """Reads the tables above, and the journal.

    :param connection: the storm's own; used once here, for the tables.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(TABLES.replace("{aged}", AGED).encode())
        rows = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert rows is not None
        self._offset = float(rows[0]) - time.monotonic()

    def entries(self, connection: psycopg.Connection[Any]) -> list[Entry]:
        """Every transition, in order."""
        return [Entry(*row) for row in self._read(connection, ENTRIES)]

    def tenures(self, connection: psycopg.Connection[Any]) -> list[Tenure]:
        """Every registration of a supervisor."""
        return [Tenure(*row) for row in self._read(connection, "SELECT id, pid, {at} FROM tenures ORDER BY at")]

    def failures(self, connection: psycopg.Connection[Any]) -> list[FailureRow]:
        """What pgsched has recorded of failed attempts, also where that was deleted since."""
        return [FailureRow(*row) for row in self._read(connection, FAILURES)]

    def rows(self, connection: psycopg.Connection[Any]) -> list[Row]:
        """All tasks as they are now, and those that were pruned as they were then."""
        return [Row(*row) for row in self._read(connection, ROWS.replace("{aged}", AGED))]

    def _read(self, connection: psycopg.Connection[Any], query: str) -> Iterable[tuple[Any, ...]]:
        at = f"extract(epoch FROM at)::float8 - {self._offset!r}"
        return connection.execute(query.replace("{at}", at).encode()).fetchall()


ENTRIES = """
    SELECT number, {at}, place, op, id, before, after, fence_before, fence_after, owner_before, owner_after,
           retries_before, retries_after, transaction::text::bigint
    FROM ledger ORDER BY number
"""
FAILURES = """
    SELECT task_id, fence, attempt, outcome, error, supervisor,
           EXISTS (SELECT FROM pgsched_failures AS now WHERE now.id = failed.id)
    FROM failed ORDER BY id
"""
ROWS = """
    SELECT id, task_type, status, fence, retry_count, max_retries, result #>> '{}',
           extract(epoch FROM run_at - clock_timestamp())::float8, unique_key,
           pgsched_partition(id, unique_key), present
    FROM (SELECT *, true AS present FROM scheduled_tasks UNION ALL SELECT *, false FROM pruned) AS task
    WHERE queue <> '{aged}' ORDER BY id
"""


def executions(journal: Path) -> list[Execution]:
    """What the journal of :mod:`tests.chaos.app` tells, in the order of the beginnings."""
    began: dict[str, Execution] = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        what, name, at, *more = line.split()
        if what == "began":
            task_id, attempt, pid, parent = map(int, more)
            began[name] = Execution(task_id, attempt, pid, parent, name, float(at), None, None)
        else:
            began[name] = began[name]._replace(ended=float(at), end=what)
    return sorted(began.values(), key=lambda execution: execution.began)
