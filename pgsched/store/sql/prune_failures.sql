-- Deletes the failures of tasks that are gone: those of a range that was dropped. Looks at a batch of old ones; returns how
-- many there were to look at, and the last.
-- $1 float8: seconds since the failure; $2 bigint: how many; $3 bigint: the failure after which the batch begins.
-- Index: the primary key, and the ids of all tasks; OFFSET keeps the planner from hashing whole tables instead. Locks: the
-- failures that go, for which nobody waits.
WITH looked_at AS MATERIALIZED (
    SELECT old.id, old.task_id
    FROM (
        SELECT id, task_id, failed_at FROM pgsched_failures WHERE id > $3::bigint ORDER BY id LIMIT $2::bigint
    ) AS old
    WHERE old.failed_at < now() - make_interval(secs => $1::float8)
), pruned AS (
    DELETE FROM pgsched_failures
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM looked_at
        WHERE NOT EXISTS (SELECT FROM scheduled_tasks AS task WHERE task.id = looked_at.task_id OFFSET 0)))
)
SELECT count(*), max(id) FROM looked_at
