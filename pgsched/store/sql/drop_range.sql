-- Drops the oldest range of ended tasks that are all older than that; its name, and about how many tasks it held. No row:
-- there is none, or it is in use.
-- $1 float8: seconds since the end. Index: scheduled_tasks_ended_status, to see whose the statuses are.
-- Locks: the ended tasks, for a moment, and waits for nobody longer than 100 ms.
SELECT dropped, tasks FROM pgsched_drop_range(make_interval(secs => $1::float8))
