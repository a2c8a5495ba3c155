-- Queued tasks by queue and type: how many, for how long the oldest has been due, whether a live supervisor would take
-- them, and how many became due of late. $1 bigint: where counting stops in each (task_type, queue, priority); $2 float8:
-- of how many seconds "of late" is.
-- Index: scheduled_tasks_due: one probe a group to find it, one range a group to count it, and a part of it once more. No
-- locks.
WITH RECURSIVE found AS (
    (SELECT task_type, queue, priority, run_at
     FROM scheduled_tasks_live
     WHERE status = 'queued'
     ORDER BY task_type, queue, priority, run_at, id
     LIMIT 1)
    UNION ALL
    SELECT following.*
    FROM found
    CROSS JOIN LATERAL (
        SELECT task_type, queue, priority, run_at
        FROM scheduled_tasks_live
        WHERE status = 'queued' AND (task_type, queue, priority) > (found.task_type, found.queue, found.priority)
        ORDER BY task_type, queue, priority, run_at, id
        LIMIT 1
    ) AS following
)
SELECT found.queue, found.task_type, 'queued' AS status, least(sum(counted.tasks), $1)::bigint AS tasks,
       bool_or(counted.tasks >= $1) AS at_least,
       max(CASE WHEN found.run_at > now() THEN NULL
                WHEN isfinite(found.run_at) THEN date_part('epoch', now() - found.run_at)
                ELSE 0 END) AS oldest_due,
       EXISTS (
           SELECT FROM pgsched_supervisors
           WHERE lease_until > now() AND found.task_type = ANY (task_types)
             AND (queues = '{}' OR found.queue = ANY (queues))
       ) AS served,
       sum(counted.became_due)::bigint AS became_due
FROM found
CROSS JOIN LATERAL (
    SELECT (
        SELECT count(*)
        FROM (
            SELECT FROM scheduled_tasks_live task
            WHERE task.status = 'queued' AND task.task_type = found.task_type AND task.queue = found.queue
              AND task.priority = found.priority
            LIMIT $1::bigint
        ) AS counting
    ) AS tasks, (
        SELECT count(*)
        FROM (
            SELECT FROM scheduled_tasks_live task
            WHERE task.status = 'queued' AND task.task_type = found.task_type AND task.queue = found.queue
              AND task.priority = found.priority
              AND task.run_at > now() - make_interval(secs => $2::float8) AND task.run_at <= now()
            LIMIT $1::bigint
        ) AS counting
    ) AS became_due
) AS counted
GROUP BY found.queue, found.task_type
ORDER BY found.queue, found.task_type
