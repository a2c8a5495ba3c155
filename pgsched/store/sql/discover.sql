-- Find the groups of queued rows of the known types, in all queues, each with its oldest row.
--
-- $1: task types.
--
-- Index: scheduled_tasks_due. One probe a group: from each group the recursion steps to the next (queue, priority) of the
-- same type, so neither the number of rows nor that of future ones matters. Locks: none.
--
-- Both times go through date_part, because a difference with an infinite timestamp is an error before PostgreSQL 17.
WITH RECURSIVE head AS (
    SELECT oldest.*
    FROM unnest($1::text[]) AS known (task_type)
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued' AND task.task_type = known.task_type
        ORDER BY task.queue, task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
    UNION ALL
    SELECT oldest.*
    FROM head
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued' AND task.task_type = head.task_type
          AND (task.queue, task.priority) > (head.queue, head.priority)
        ORDER BY task.queue, task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
)
SELECT task_type, queue, priority, id, run_at::text, date_part('epoch', run_at) - date_part('epoch', now())
FROM head
