-- How much there is in each queue: queued rows, counted up to 100,000; claims; for how long the oldest row has been due.
-- And, in rows without a queue, of each task type: how many rows are due, counted up to 100,000.
--
-- Counting a long queue takes its time. Who has counted leaves the answer to the other supervisors, for two and a half
-- seconds, or for a hundred times as long as it took: so however many there are, it costs a hundredth of a processor.
--
-- Index: scheduled_tasks_due, one probe a group to find it, and its range to count it twice; scheduled_tasks_held; the primary
-- key of the supervisors, all of them. Locks: the supervisor's row that the answer is left in, skipping what is locked.
WITH RECURSIVE known AS MATERIALIZED (
    SELECT depths
    FROM pgsched_supervisors
    WHERE depths_at <= now() AND depths_at + greatest(interval '2.5 seconds', 100 * depths_took) > now()
    ORDER BY depths_at DESC
    LIMIT 1
), head AS (
    (SELECT task.task_type, task.queue, task.priority, task.run_at
     FROM scheduled_tasks_live AS task
     WHERE task.status = 'queued' AND NOT EXISTS (SELECT FROM known)
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
    SELECT head.queue, array_agg(head.task_type) AS task_types, array_agg(head.priority) AS priorities,
           max(date_part('epoch', now()) - date_part('epoch', head.run_at)) FILTER (WHERE isfinite(head.run_at))
               AS oldest_due
    FROM head
    GROUP BY head.queue
), queued AS (
    SELECT waiting.queue, waiting.oldest_due, counted.number
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM unnest(waiting.task_types, waiting.priorities) AS each (task_type, priority)
            CROSS JOIN LATERAL (
                SELECT
                FROM scheduled_tasks_live AS task
                WHERE task.status = 'queued' AND task.task_type = each.task_type AND task.queue = waiting.queue
                  AND task.priority = each.priority
                LIMIT 100000
            ) AS member
            LIMIT 100000
        ) AS capped
    ) AS counted
), due AS (
    SELECT kind.task_type, counted.number
    FROM (SELECT task_type, array_agg(queue) AS queues, array_agg(priority) AS priorities
          FROM head
          GROUP BY task_type) AS kind
    CROSS JOIN LATERAL (
        SELECT count(*) AS number
        FROM (
            SELECT
            FROM unnest(kind.queues, kind.priorities) AS each (queue, priority)
            CROSS JOIN LATERAL (
                SELECT
                FROM scheduled_tasks_live AS task
                WHERE task.status = 'queued' AND task.task_type = kind.task_type AND task.queue = each.queue
                  AND task.priority = each.priority AND task.run_at <= now()
                LIMIT 100000
            ) AS member
            LIMIT 100000
        ) AS capped
    ) AS counted
), processing AS (
    SELECT task.queue, count(*) AS number
    FROM scheduled_tasks_live AS task
    WHERE task.status = 'processing' AND NOT EXISTS (SELECT FROM known)
    GROUP BY task.queue
), depth AS MATERIALIZED (
    SELECT queue, coalesce(queued.number, 0) AS queued, coalesce(processing.number, 0) AS processing,
           greatest(coalesce(queued.oldest_due, 0), 0) AS oldest_due, NULL AS task_type, NULL::bigint AS due
    FROM queued
    FULL JOIN processing USING (queue)
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, task_type, number
    FROM due
), left_to_others AS (
    UPDATE pgsched_supervisors
    SET depths = (SELECT coalesce(jsonb_agg(depth), '[]') FROM depth), depths_at = now(),
        depths_took = clock_timestamp() - statement_timestamp()
    WHERE NOT EXISTS (SELECT FROM known)
      AND id = (SELECT id FROM pgsched_supervisors ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
)
SELECT queue, queued, processing, oldest_due, task_type, due
FROM depth
UNION ALL
SELECT queue, queued, processing, oldest_due, task_type, due
FROM known
CROSS JOIN jsonb_to_recordset(known.depths)
    AS found (queue text, queued bigint, processing bigint, oldest_due float8, task_type text, due bigint)
ORDER BY queue, task_type
