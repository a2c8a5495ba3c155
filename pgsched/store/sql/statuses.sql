-- The statuses of tasks, to say why one could not be changed. $1 bigint[]: ids.
-- Index: the ids of both partitions. No locks.
SELECT id, status FROM scheduled_tasks WHERE id = ANY ($1::bigint[])
