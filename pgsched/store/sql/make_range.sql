-- Makes the next range of ended tasks that is to be there ahead; returns its name, NULL when there is nothing to make.
-- $1, $2 float8: seconds that a range is wide, and that are to be covered from now on.
-- Index: scheduled_tasks_ended_finished, scheduled_tasks_ended_status. Locks: see the function; it waits for none
-- longer than 100 ms.
SELECT pgsched_make_range(make_interval(secs => $1::float8), make_interval(secs => $2::float8))
