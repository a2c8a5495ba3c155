-- Renew a lease that has not run out; one that has is final, so that a reaper need not fear its return. The answer says how
-- many processes somebody wants.
--
-- $1: supervisor; $2: seconds; $3: who renews: boot id, pid namespace, pid and start ticks; NULL: whoever. In a database
-- that was set back to an earlier state, somebody else may have the same id by now.
--
-- Index: the primary key.
-- Locks: the supervisor's row. When a reaper holds it, the condition is judged anew after the wait, by the clock of then.
UPDATE pgsched_supervisors
SET lease_until = clock_timestamp() + make_interval(secs => $2::float8)
WHERE id = $1::bigint AND lease_until > clock_timestamp()
  AND ($3::text IS NULL OR concat_ws(' ', boot_id, pid_namespace, pid, started_ticks) = $3::text)
RETURNING wanted_processes
