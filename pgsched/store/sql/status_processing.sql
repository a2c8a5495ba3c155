-- Tasks in work by queue and type, and how many of them belong to no supervisor that is known (a worker written after the
-- article, or a supervisor whose row was deleted). Index: scheduled_tasks_held. No locks.
SELECT task.queue, task.task_type, 'processing' AS status, count(*) AS tasks, false AS at_least,
       count(*) FILTER (WHERE supervisor.id IS NULL) AS ownerless
FROM scheduled_tasks_live task
LEFT JOIN pgsched_supervisors supervisor ON supervisor.id = task.claimed_by
WHERE task.status = 'processing'
GROUP BY task.queue, task.task_type
ORDER BY task.queue, task.task_type
