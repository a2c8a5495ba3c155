-- Every claim under the supervisor's name, and whether it was reaped.
--
-- A claim writes started_at, and a reap takes it away. The payload is left out: none of these is begun.
--
-- $1: supervisor. Index: scheduled_tasks_held by owner. Locks: none.
SELECT id, fence, task_type, queue, priority, '{}', retry_count, max_retries, timeout, 0::float8, run_at::text, ctid,
       started_at IS NULL
FROM scheduled_tasks_live
WHERE status = 'processing' AND claimed_by = $1::bigint
ORDER BY claimed_by, updated_at
