-- Say whether the supervisor sleeps and wants to be woken.
--
-- $1: supervisor; $2: yes or no. Index: the primary key. Locks: the supervisor's row.
--
-- A hint that nobody waits for the disk for: a crash of the server may undo it, and the supervisor then says it again.
UPDATE pgsched_supervisors SET listening = $2::boolean
WHERE id = $1::bigint AND set_config('synchronous_commit', 'off', true) = 'off'
