-- The supervisors, or one of them, with the claims that each holds.
-- $1 bigint: its id; NULL: all. Index: scheduled_tasks_held, one range a supervisor. No locks.
SELECT supervisor.id, supervisor.host, supervisor.pid, supervisor.processes, supervisor.queues, supervisor.task_types,
       supervisor.partitions,
       supervisor.version, supervisor.listening, supervisor.registered_at, supervisor.lease_until,
       extract(epoch FROM supervisor.lease_until - now())::float8 AS lease_seconds,
       extract(epoch FROM now() - supervisor.registered_at)::float8 AS age,
       (SELECT count(*) FROM scheduled_tasks_live
        WHERE status = 'processing' AND claimed_by = supervisor.id) AS claims
FROM pgsched_supervisors supervisor
WHERE $1::bigint IS NULL OR supervisor.id = $1
ORDER BY supervisor.host, supervisor.id
