-- How much there is in each queue: queued rows, counted up to 100,000; claims; for how long the oldest row has been due.
--
-- Index: scheduled_tasks_due, one probe a group to find it, and its range to count it; scheduled_tasks_held. Locks: none.
WITH RECURSIVE head AS (
    (SELECT task.task_type, task.queue, task.priority, task.run_at
     FROM scheduled_tasks_live AS task
     WHERE task.status = 'queued'
     ORDER BY task.task_type, task.queue, task.priority, task.run_at, task.id
     LIMIT 1)
    UNION ALL
    SELECT oldest.*
    FROM head
    CROSS JOIN LATERAL (
        SELECT task.task_type, task.queue, task.priority, task.run_at
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued'
          AND (task.task_type, task.queue, task.priority) > (head.task_type, head.queue, head.priority)
        ORDER BY task.task_type, task.queue, task.priority, task.run_at, task.id
        LIMIT 1
    ) AS oldest
), waiting AS (
    SELECT head.queue,
           max(date_part('epoch', now()) - date_part('epoch', head.run_at)) FILTER (WHERE isfinite(head.run_at)) AS oldest_due
    FROM head
    GROUP BY head.queue
), queued AS (
    SELECT waiting.queue, waiting.oldest_due, counted.number
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM head
            CROSS JOIN LATERAL (
                SELECT
                FROM scheduled_tasks_live AS task
                WHERE task.status = 'queued' AND task.task_type = head.task_type AND task.queue = head.queue
                  AND task.priority = head.priority
                LIMIT 100000
            ) AS member
            WHERE head.queue = waiting.queue
            LIMIT 100000
        ) AS capped
    ) AS counted
), processing AS (
    SELECT task.queue, count(*) AS number
    FROM scheduled_tasks_live AS task
    WHERE task.status = 'processing'
    GROUP BY task.queue
)
SELECT queue, coalesce(queued.number, 0), coalesce(processing.number, 0), greatest(coalesce(queued.oldest_due, 0), 0)
FROM queued
FULL JOIN processing USING (queue)
ORDER BY queue
