-- The article's claim, for a batch: both limits are the batch, and = has become IN.
-- $1: namespace of the advisory locks; $2: rows.
WITH candidate_task AS (
    SELECT id
    FROM scheduled_tasks
    WHERE status = 'queued' AND run_at <= NOW()
    ORDER BY run_at ASC, id ASC
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
UPDATE scheduled_tasks
SET status = 'processing', updated_at = NOW()
WHERE id IN (
    SELECT id FROM candidate_task
    WHERE pg_try_advisory_xact_lock($1::integer, (id % 2147483647)::integer)
    LIMIT $2::bigint
)
RETURNING id, task_type, payload, retry_count;
