-- Leave: give the lease up. With claims left the row stays, expired, for a reaper to find them by.
--
-- $1: supervisor; $2: who leaves, see renew.sql. Index: scheduled_tasks_held by owner. Locks: the supervisor's row.
WITH expired AS (
    UPDATE pgsched_supervisors AS me
    SET lease_until = least(me.lease_until, clock_timestamp()), listening = false
    WHERE me.id = $1::bigint
      AND ($2::text IS NULL OR concat_ws(' ', me.boot_id, me.pid_namespace, me.pid, me.started_ticks) = $2::text)
      AND EXISTS (SELECT FROM scheduled_tasks_live AS task WHERE task.status = 'processing' AND task.claimed_by = $1::bigint)
)
DELETE FROM pgsched_supervisors AS me
WHERE me.id = $1::bigint
  AND ($2::text IS NULL OR concat_ws(' ', me.boot_id, me.pid_namespace, me.pid, me.started_ticks) = $2::text)
  AND NOT EXISTS (SELECT FROM scheduled_tasks_live AS task WHERE task.status = 'processing' AND task.claimed_by = $1::bigint)
