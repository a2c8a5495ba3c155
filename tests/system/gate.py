"""A gate before some changes of live rows: a trigger of the test's own waits there for a lock that the test holds.

So a test knows, without sleeping, that a claim or a settle is under way and not yet committed. The
wait there has no limit of its own, as others for locks have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from tests.support import Server, eventually

TRIGGER = """
    CREATE TABLE gate ();
    CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = 0 AS $$
    BEGIN
        LOCK TABLE gate IN ACCESS SHARE MODE;
        RETURN CASE tg_op WHEN 'DELETE' THEN old ELSE new END;
    END $$;
    CREATE TRIGGER pass_gate BEFORE {change} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION pass_gate();
"""


class Way(NamedTuple):
    """Which changes have to pass, in SQL over ``old`` and ``new``."""

    change: str
    condition: str


CLAIM = Way("UPDATE ON scheduled_tasks_live", "old.status = 'queued' AND new.status = 'processing'")
REAP = Way("UPDATE ON scheduled_tasks_live", "new.status = 'processing' AND new.claimed_by <> old.claimed_by")
RETRY = Way("UPDATE ON scheduled_tasks_live", "old.status = 'processing' AND new.status = 'queued'")
END = Way("DELETE ON scheduled_tasks_live", "old.status = 'processing'")


class Gate:
    """Stands open until it is closed."""

    def __init__(self, server: Server, dsn: str, way: Way) -> None:
        self._server = server
        self._dsn = dsn
        server.sql(TRIGGER.format(**way._asdict()), dsn=dsn)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let nobody pass; at the end of the block all who wait go on."""
        with psycopg.connect(self._dsn, application_name="tests") as holder:
            holder.execute("LOCK TABLE gate IN ACCESS EXCLUSIVE MODE")
            yield
            holder.rollback()

    def wait_for_arrival(self) -> None:
        """Wait until somebody stands before the gate; supervisors also wait for each other's row locks now and then."""
        waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'gate'::regclass AND NOT granted)"
        eventually(lambda: self._server.value(waiting, dsn=self._dsn), "a change has come to the gate")
