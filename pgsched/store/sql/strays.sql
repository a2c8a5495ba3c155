-- Every claim under the supervisor's name, and whether it was reaped.
--
-- A claim writes started_at and updated_at alike; a reap only the latter, and finds no started_at where a worker written
-- after the article had the row. The payload is left out: none of these is begun.
--
-- $1: supervisor. Index: scheduled_tasks_held by owner. Locks: none.
SELECT id, fence, task_type, queue, priority, '{}', retry_count, max_retries, timeout, 0::float8, run_at::text, ctid,
       coalesce(started_at < updated_at, true)
FROM scheduled_tasks_live
WHERE status = 'processing' AND claimed_by = $1::bigint
ORDER BY claimed_by, updated_at
