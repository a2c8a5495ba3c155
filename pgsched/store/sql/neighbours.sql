-- The supervisors with a live lease in one pid namespace of one boot of one host.
--
-- $1: boot id; $2: pid namespace. Index: none, the table has a row a supervisor. Locks: none.
SELECT id, pid, started_ticks
FROM pgsched_supervisors
WHERE boot_id = $1 AND pid_namespace = $2::bigint AND lease_until > clock_timestamp()
