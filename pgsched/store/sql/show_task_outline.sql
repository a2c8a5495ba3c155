-- The same as show_task for a role that may not read payloads and results. $1 bigint: the task's id.
-- Index: the ids of both partitions. No locks.
SELECT id, task_type, NULL AS payload, run_at, status, max_retries, retry_count, error_log, created_at, updated_at, queue,
       priority, fence, claimed_by, started_at, finished_at, NULL AS result, timeout, unique_key
FROM scheduled_tasks
WHERE id = $1::bigint
ORDER BY status IN ('queued', 'processing') DESC, updated_at DESC
LIMIT 1
