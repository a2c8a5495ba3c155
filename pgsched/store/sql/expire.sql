-- End the leases of supervisors that are known to be dead.
--
-- $1: supervisors. Index: the primary key.
-- Locks: their rows, in id order, and so that a claim that is still on its way comes first: its rows then bear a time
-- within the lease, by which the reaper knows them.
WITH dead AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
)
UPDATE pgsched_supervisors AS supervisor
SET lease_until = least(supervisor.lease_until, clock_timestamp()), listening = false
FROM dead
WHERE supervisor.id = ANY (ARRAY[dead.id])
