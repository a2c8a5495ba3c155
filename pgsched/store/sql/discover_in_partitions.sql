-- Find the groups of queued rows of the known types in some partitions, each with its oldest row and its partition.
--
-- $1: task types; $2: queues, NULL for all; $3: partitions.
--
-- Index: scheduled_tasks_due of these partitions. One probe a group, those of other queues too. Locks: none. For date_part
-- see discover.sql.
WITH RECURSIVE head AS (
    SELECT oldest.*, part.number
    FROM unnest($1::text[]) AS known (task_type)
    CROSS JOIN unnest($3::integer[]) AS part (number)
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE pgsched_partition(task.id, task.unique_key) = part.number
          AND task.status = 'queued' AND task.task_type = known.task_type
        ORDER BY task.queue, task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
    UNION ALL
    SELECT oldest.*, head.number
    FROM head
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.id, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE pgsched_partition(task.id, task.unique_key) = head.number
          AND task.status = 'queued' AND task.task_type = head.task_type
          AND (task.queue, task.priority) > (head.queue, head.priority)
        ORDER BY task.queue, task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
)
SELECT task_type, queue, priority, id, run_at::text, date_part('epoch', run_at) - date_part('epoch', now()), number
FROM head
WHERE $2::text[] IS NULL OR queue = ANY ($2)
