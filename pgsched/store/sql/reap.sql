-- Take over claims of supervisors whose lease has run out.
--
-- $1: the reaper, whose own lease must be alive; $2: claims at most.
--
-- A row that was touched after the lease's end is somebody else's: the article's reaper and claimer leave claimed_by as it
-- is. It gets the article's five minutes.
-- The payload is left out: none of these is begun. Without started_at it is known as reaped, should the reply be lost.
--
-- Index: scheduled_tasks_held by owner, then the primary key.
-- Locks: the reaper's own row; the dead supervisors'; then tasks. What is locked is skipped: whoever has it is at work
-- there, or reaps it. The dead rows are also written: whoever waits for one then judges it anew, so that a renewal or a
-- claim that began within the lease is refused. After a mere lock it would go on as if nothing had happened.
WITH me AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp() FOR KEY SHARE
), expired AS MATERIALIZED (
    SELECT supervisor.id
    FROM pgsched_supervisors AS supervisor
    WHERE supervisor.lease_until <= clock_timestamp() AND EXISTS (SELECT FROM me)
    ORDER BY supervisor.id
    FOR UPDATE SKIP LOCKED
), dead AS (
    UPDATE pgsched_supervisors AS supervisor
    SET listening = false
    FROM expired
    WHERE supervisor.id = ANY (ARRAY[expired.id])
    RETURNING supervisor.id, greatest(supervisor.lease_until, now() - interval '5 minutes') AS untouched_since
), orphan AS MATERIALIZED (
    SELECT held.id
    FROM dead
    CROSS JOIN LATERAL (
        SELECT task.id
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'processing' AND task.claimed_by = dead.id AND task.updated_at <= dead.untouched_since
        ORDER BY task.claimed_by, task.updated_at
        LIMIT $2::bigint
        FOR UPDATE SKIP LOCKED
    ) AS held
    LIMIT $2::bigint
)
UPDATE scheduled_tasks_live AS task
SET fence = task.fence + 1, claimed_by = $1::bigint, started_at = NULL, updated_at = now()
FROM orphan
WHERE task.id = ANY (ARRAY[orphan.id])
RETURNING task.id, task.fence, task.task_type, task.queue, task.priority, '{}', task.retry_count,
          task.max_retries, task.timeout, 0::float8, task.run_at::text, task.ctid
