-- Say what has changed of a supervisor that lives.
--
-- $1: supervisor; $2: processes; $3: task types. Index: the primary key. Locks: the supervisor's row.
UPDATE pgsched_supervisors
SET processes = $2::integer, task_types = $3::text[]
WHERE id = $1::bigint
