-- Say whether the supervisor sleeps and wants to be woken.
--
-- $1: supervisor; $2: yes or no. Index: the primary key. Locks: the supervisor's row.
UPDATE pgsched_supervisors SET listening = $2::boolean WHERE id = $1::bigint
