-- Claim by row locks; whoever meets another's lock waits for it, and then finds the row taken. $1: rows.
WITH candidate_task AS MATERIALIZED (
    SELECT id
    FROM scheduled_tasks
    WHERE status = 'queued' AND run_at <= now()
    ORDER BY run_at, id
    LIMIT $1::bigint
    FOR UPDATE
)
UPDATE scheduled_tasks
SET status = 'processing', updated_at = now()
WHERE id IN (SELECT id FROM candidate_task)
RETURNING id, task_type, payload, retry_count;
