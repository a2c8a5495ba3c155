-- The newest tasks that pass a filter, each with who holds it.
-- $1 bigint[]: ids; $2 text[]: statuses; $3 text[]: task types; $4 text[]: queues; NULL lets everything pass;
-- $5 bigint: how many.
-- Index: the ids of both partitions, backwards, or scheduled_tasks_ended_status. No locks.
WITH task AS (
    SELECT id, task_type, queue, priority, status, retry_count, max_retries, run_at, started_at, finished_at, updated_at,
           left(error_log, 1000) AS error, CASE WHEN status = 'processing' THEN claimed_by END AS claimed_by
    FROM scheduled_tasks
    WHERE ($1::bigint[] IS NULL OR id = ANY ($1))
      AND ($2::text[] IS NULL OR status = ANY ($2))
      AND ($3::text[] IS NULL OR task_type = ANY ($3))
      AND ($4::text[] IS NULL OR queue = ANY ($4))
    ORDER BY id DESC
    LIMIT $5::bigint
)
SELECT task.*, supervisor.host, supervisor.pid, supervisor.lease_until
FROM task LEFT JOIN pgsched_supervisors supervisor ON supervisor.id = task.claimed_by
ORDER BY task.id DESC
