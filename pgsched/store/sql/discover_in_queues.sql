-- Find the groups of queued rows of the known types in some queues, each with its oldest row.
--
-- $1: task types; $2: queues.
--
-- Index: scheduled_tasks_due. One probe a group: within each type and queue the recursion steps from priority to priority,
-- so queues that were not asked for cost nothing. Locks: none. For date_part see discover.sql.
WITH RECURSIVE head AS (
    SELECT oldest.*
    FROM unnest($1::text[]) AS known (task_type)
    CROSS JOIN unnest($2::text[]) AS asked (queue)
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued' AND task.task_type = known.task_type AND task.queue = asked.queue
        ORDER BY task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
    UNION ALL
    SELECT oldest.*
    FROM head
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued' AND task.task_type = head.task_type AND task.queue = head.queue
          AND task.priority > head.priority
        ORDER BY task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
)
SELECT task_type, queue, priority, id, run_at::text, date_part('epoch', run_at) - date_part('epoch', now())
FROM head
