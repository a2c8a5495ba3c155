-- Ask live supervisors for another number of processes; each takes it when it next renews its lease.
--
-- $1: how many; $2 text[]: ids and hosts; NULL: all. Index: none, the table has a row a supervisor. Locks: their rows.
UPDATE pgsched_supervisors AS supervisor
SET wanted_processes = $1::integer
WHERE lease_until > clock_timestamp() AND ($2::text[] IS NULL OR host = ANY ($2) OR id::text = ANY ($2))
RETURNING supervisor.id, supervisor.host, supervisor.pid, supervisor.processes
