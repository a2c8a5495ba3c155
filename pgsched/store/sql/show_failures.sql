-- The last failures of a task, oldest first. $1 bigint: its id; $2 bigint: how many.
-- Index: pgsched_failures_task. No locks.
SELECT *
FROM (
    SELECT id, attempt, fence, outcome, error, traceback, exit_code, signal, out_of_memory, cpu_seconds, peak_memory, stderr,
           stack, seconds, supervisor, failed_at
    FROM pgsched_failures
    WHERE task_id = $1::bigint
    ORDER BY id DESC
    LIMIT $2::bigint
) AS last
ORDER BY id
