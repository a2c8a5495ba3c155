-- Deletes a batch of tasks that ended long ago, the oldest first, and their failures; returns how many, and the end of the
-- last. A status that is nobody's here is never pruned.
-- $1 float8: seconds since the end; $2 bigint: how many; $3 timestamptz: where the scan begins (NULL: at the oldest), which
-- spares it the dead index entries of the batches before.
-- Index: scheduled_tasks_ended_finished, pgsched_failures_task. Waits for nobody: locked rows are skipped.
-- The same place may be in several ranges: those between the first end and the last are looked into, and the id tells. With
-- IS TRUE that is no join, for which the planner might walk over a whole index.
WITH chosen AS MATERIALIZED (
    SELECT tableoid AS range, ctid AS place, id, coalesce(finished_at, updated_at) AS ended_at
    FROM scheduled_tasks_ended
    WHERE status IN ('completed', 'failed', 'cancelled')
      AND coalesce(finished_at, updated_at) < now() - make_interval(secs => $1::float8)
      AND coalesce(finished_at, updated_at) >= coalesce($3::timestamptz, '-infinity')
    ORDER BY coalesce(finished_at, updated_at)
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), pruned AS (
    DELETE FROM scheduled_tasks_ended AS task
    WHERE task.ctid = ANY (ARRAY(SELECT place FROM chosen))
      AND coalesce(task.finished_at, task.updated_at) >= (SELECT min(ended_at) FROM chosen)
      AND coalesce(task.finished_at, task.updated_at) <= (SELECT max(ended_at) FROM chosen)
      AND ((task.tableoid, task.ctid, task.id) IN (SELECT range, place, id FROM chosen)) IS TRUE
    RETURNING task.id
), failures AS (
    DELETE FROM pgsched_failures WHERE task_id = ANY (ARRAY(SELECT id FROM pruned))
)
SELECT (SELECT count(*) FROM pruned) AS pruned, (SELECT max(ended_at)::text FROM chosen) AS last
