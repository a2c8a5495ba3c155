-- Moves the rows of the adopted table. What the article's schema forbids and somebody's copy of it may hold all the same
-- is made valid: missing values become the defaults, a missing status becomes one that nobody runs. Rows that have ended
-- get the time of their last update as their end. One scan, no index.
INSERT INTO scheduled_tasks (id, task_type, payload, run_at, status, max_retries, retry_count, error_log,
                             created_at, updated_at, finished_at)
SELECT id, task_type, coalesce(payload::jsonb, '{}'), run_at, coalesce(status, 'unknown'),
       greatest(coalesce(max_retries, 3), 0), least(greatest(coalesce(retry_count, 0), 0), 2147483646), error_log,
       coalesce(created_at, updated_at, now()), coalesce(updated_at, created_at, now()),
       CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN coalesce(updated_at, created_at, now()) END
FROM pgsched_adopted
