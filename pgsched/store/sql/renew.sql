-- Renew a lease that has not run out; one that has is final, so that a reaper need not fear its return.
--
-- $1: supervisor; $2: seconds. Index: the primary key.
-- Locks: the supervisor's row. When a reaper holds it, the condition is judged anew after the wait, by the clock of then.
UPDATE pgsched_supervisors
SET lease_until = clock_timestamp() + make_interval(secs => $2::float8)
WHERE id = $1::bigint AND lease_until > clock_timestamp()
RETURNING id
