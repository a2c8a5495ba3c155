-- How tasks stand and what they have returned, by id.
--
-- $1 bigint[]: ids.
--
-- Index: the ids of both partitions. Locks: none.
SELECT id, status, payload::text AS payload, result::text AS result, error_log AS error
FROM scheduled_tasks
WHERE id = ANY ($1::bigint[])
ORDER BY id
