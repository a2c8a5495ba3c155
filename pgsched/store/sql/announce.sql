-- Say what has changed of a supervisor that lives. Another number may have been asked for since it took the one that it
-- answers; that one stays.
--
-- $1: supervisor; $2: processes; $3: task types; $4: the wanted number that was taken, or NULL; $5: who says it, see
-- renew.sql. Index: the primary key. Locks: the supervisor's row.
UPDATE pgsched_supervisors
SET processes = $2::integer, task_types = $3::text[], wanted_processes = nullif(wanted_processes, $4::integer)
WHERE id = $1::bigint
  AND ($5::text IS NULL OR concat_ws(' ', boot_id, pid_namespace, pid, started_ticks) = $5::text)
