-- One task with all its columns; a live one, should an ended one bear the same id. $1 bigint: its id.
-- Index: the ids of both partitions. No locks.
SELECT id, task_type, payload::text, run_at, status, max_retries, retry_count, error_log, created_at, updated_at, queue,
       priority, fence, claimed_by, started_at, finished_at, result::text, timeout, unique_key
FROM scheduled_tasks
WHERE id = $1::bigint
ORDER BY status IN ('queued', 'processing') DESC, updated_at DESC
LIMIT 1
