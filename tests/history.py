"""The history of a test's rows: every change of a live row, written down by a trigger of the test's own.

Shows what the rows themselves no longer tell: how often a task was claimed, and which settle was accepted under which
fence.
"""

from typing import NamedTuple

from tests.support import Server

TABLE = """
    CREATE TABLE history (
        entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id bigint NOT NULL,
        before text NOT NULL,
        after text NOT NULL,
        fence_before bigint NOT NULL,
        fence_after bigint NOT NULL,
        owner_before bigint,
        owner_after bigint
    );
    CREATE FUNCTION note_history() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF tg_op = 'DELETE' THEN
            INSERT INTO history (id, before, after, fence_before, fence_after, owner_before)
            VALUES (old.id, old.status, 'ended', old.fence, old.fence, old.claimed_by);
            RETURN old;
        END IF;
        INSERT INTO history (id, before, after, fence_before, fence_after, owner_before, owner_after)
        VALUES (old.id, old.status, new.status, old.fence, new.fence, old.claimed_by, new.claimed_by);
        RETURN new;
    END $$;
    CREATE TRIGGER note_history BEFORE UPDATE OR DELETE ON scheduled_tasks_live
    FOR EACH ROW EXECUTE FUNCTION note_history();
"""


class Change(NamedTuple):
    """One update of one row, or its removal from the live ones: then ``after`` is "ended"."""

    task_id: int
    before: str
    after: str
    fence_before: int
    fence_after: int
    owner_before: int | None
    owner_after: int | None


class History:
    """The table of one test's database; make it before the first task is claimed."""

    def __init__(self, server: Server, dsn: str) -> None:
        self._server = server
        self._dsn = dsn
        server.sql(TABLE, dsn=dsn)

    def changes(self) -> list[Change]:
        """Everything that happened, in order."""
        rows = self._server.sql(
            "SELECT id, before, after, fence_before, fence_after, owner_before, owner_after FROM history"
            " ORDER BY entry",
            dsn=self._dsn,
        )
        return [Change(*row) for row in rows]

    def claims(self) -> dict[int, int]:
        """How often each task was claimed."""
        rows = self._server.sql(
            "SELECT id, count(*) FROM history WHERE before = 'queued' AND after = 'processing' GROUP BY id",
            dsn=self._dsn,
        )
        return dict(rows)

    def settles(self) -> dict[tuple[int, int], int]:
        """How many changes took a task out of ``processing`` under each (task, fence)."""
        rows = self._server.sql(
            "SELECT id, fence_before, count(*) FROM history WHERE before = 'processing' AND after <> 'processing'"
            " GROUP BY id, fence_before",
            dsn=self._dsn,
        )
        return {(task_id, fence): count for task_id, fence, count in rows}
