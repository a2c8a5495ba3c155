"""What a drain beside an old snapshot is measured under, and that nothing passes for it."""

import pytest

from benchmarks.server import APPLICATION
from benchmarks.snapshot import old_snapshot
from tests.support import Server

HELD = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    " AND state = 'idle in transaction' AND backend_xmin IS NOT NULL"
)


def test_the_snapshot_is_held_by_an_idle_session_until_the_end(server: Server, dsn: str) -> None:
    with old_snapshot(dsn):
        assert server.value(HELD, APPLICATION, dsn=dsn) == 1
        server.sql(
            "INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'a', now() FROM generate_series(1, 100)", dsn=dsn
        )
        server.sql("DELETE FROM scheduled_tasks", dsn=dsn)
        server.sql("VACUUM scheduled_tasks", dsn=dsn)
        # Empty pages at the end would have been given back; how many rows are dead is told late, and some twice.
        assert server.value("SELECT pg_relation_size('scheduled_tasks_live')", dsn=dsn) > 0
    assert server.value(HELD, APPLICATION, dsn=dsn) == 0


def test_a_snapshot_that_was_lost_is_no_measurement(server: Server, dsn: str) -> None:
    with pytest.raises(RuntimeError, match="the old snapshot was lost"), old_snapshot(dsn):
        assert server.terminate(dsn, APPLICATION) == 1
