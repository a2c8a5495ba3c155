-- Take over claims that nobody has touched for five minutes and that have no supervisor: a worker written after the article
-- made them, and leaves claimed_by NULL, or as an earlier owner has left it whose row is gone by now.
--
-- $1: the reaper, whose own lease must be alive; $2: claims at most. For started_at see reap.sql.
--
-- Index: scheduled_tasks_held, one range for NULL and one for each gap between two ids of supervisors, so the entries of
-- those who live are not walked over; then the primary key.
-- Locks: the reaper's own row, then tasks, skipping what is locked.
WITH me AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp() FOR KEY SHARE
), gap AS MATERIALIZED (
    SELECT id AS above, lead(id, 1, 9223372036854775807) OVER (ORDER BY id) AS below
    FROM (SELECT id FROM pgsched_supervisors UNION ALL SELECT -9223372036854775808) AS supervisor
), ownerless AS MATERIALIZED (
    SELECT task.id
    FROM scheduled_tasks_live AS task
    WHERE task.status = 'processing' AND task.claimed_by IS NULL AND task.updated_at < now() - interval '5 minutes'
      AND EXISTS (SELECT FROM me)
    ORDER BY task.claimed_by, task.updated_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), abandoned AS MATERIALIZED (
    SELECT held.id
    FROM gap
    CROSS JOIN LATERAL (
        SELECT task.id
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'processing' AND task.claimed_by > gap.above AND task.claimed_by < gap.below
          AND task.updated_at < now() - interval '5 minutes'
        ORDER BY task.claimed_by, task.updated_at
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) AS held
    WHERE EXISTS (SELECT FROM me)
    LIMIT $2::bigint
), orphan AS MATERIALIZED (
    SELECT id FROM ownerless
    UNION ALL
    SELECT id FROM abandoned
    LIMIT $2::bigint
)
UPDATE scheduled_tasks_live AS task
SET fence = task.fence + 1, claimed_by = $1::bigint, started_at = NULL, updated_at = now()
FROM orphan
WHERE task.id = ANY (ARRAY[orphan.id])
RETURNING task.id, task.fence, task.task_type, task.queue, task.priority, '{}', task.retry_count,
          task.max_retries, task.timeout, 0::float8, task.run_at::text, task.ctid
