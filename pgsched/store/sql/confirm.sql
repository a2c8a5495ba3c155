-- Which of these claims are still the supervisor's? Refreshes updated_at about once a minute, so that the article's reaper
-- ("not updated for five minutes") sees a living task.
--
-- $1: supervisor, whose lease must be alive; $2, $3: task ids and fences.
--
-- Index: the primary key of the live partition; for ANY (ARRAY[...]) see claim.sql.
-- Locks: the tasks that are refreshed, skipping what is locked: whoever has it changes it, and the next turn will tell how.
-- Not the supervisor: a task that is refreshed as the lease ends was touched before that, so a reaper takes it all the same.
WITH supervisor AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp()
), ours AS MATERIALIZED (
    SELECT task.id, task.fence, task.updated_at
    FROM unnest($2::bigint[], $3::bigint[]) AS claim (id, fence)
    JOIN scheduled_tasks_live AS task ON task.id = ANY (ARRAY[claim.id])
    WHERE task.fence = claim.fence AND task.claimed_by = $1::bigint AND (task.status || '') = 'processing'
      AND EXISTS (SELECT FROM supervisor)
), stale AS MATERIALIZED (
    SELECT task.id
    FROM ours
    CROSS JOIN LATERAL (
        SELECT live.id
        FROM scheduled_tasks_live AS live
        WHERE live.id = ours.id AND live.claimed_by = $1::bigint AND (live.status || '') = 'processing'
        FOR UPDATE SKIP LOCKED
    ) AS task
    WHERE ours.updated_at < now() - interval '1 minute'
), refreshed AS (
    UPDATE scheduled_tasks_live AS task
    SET updated_at = now()
    FROM stale
    WHERE task.id = ANY (ARRAY[stale.id])
)
SELECT id, fence FROM ours
