-- Ended tasks by queue, type and status, of the newest of each status: a status that has more is marked.
-- $1 bigint: how many of each status are looked at.
-- Index: scheduled_tasks_ended_id backwards for completed ones, scheduled_tasks_ended_status for the others, whose
-- statuses are found by one probe each. No locks.
WITH RECURSIVE other AS (
    (SELECT status FROM scheduled_tasks_ended WHERE status <> 'completed' ORDER BY status LIMIT 1)
    UNION ALL
    SELECT (SELECT ended.status FROM scheduled_tasks_ended ended
            WHERE ended.status <> 'completed' AND ended.status > other.status ORDER BY ended.status LIMIT 1)
    FROM other
    WHERE other.status IS NOT NULL
), newest AS (
    (SELECT queue, task_type, status FROM scheduled_tasks_ended WHERE status = 'completed' ORDER BY id DESC LIMIT $1::bigint)
    UNION ALL
    SELECT task.*
    FROM other
    CROSS JOIN LATERAL (
        SELECT queue, task_type, status
        FROM scheduled_tasks_ended
        WHERE status <> 'completed' AND status = other.status
        ORDER BY id DESC
        LIMIT $1::bigint
    ) AS task
)
SELECT queue, task_type, status, count(*) AS tasks, sum(count(*)) OVER (PARTITION BY status) >= $1 AS at_least
FROM newest
GROUP BY queue, task_type, status
ORDER BY queue, task_type, status
