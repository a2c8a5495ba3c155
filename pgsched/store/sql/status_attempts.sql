-- Attempts of late, by task type and supervisor: those that have ended, and those that run. What is a row here and what
-- a supervisor counts for its metrics differ in one thing: attempts that were cancelled leave no time, and are left out.
-- $1 bigint: how many of the newest completed tasks, and of the newest failed attempts, are looked at; $2 float8: of how
-- many seconds, unless those are of a shorter time.
--
-- Answer: the seconds that were looked at, the same in each row; the type and the supervisor; how many attempts have
-- ended, and how long they took together; how many run, and how long together so far; how much of both fell into the
-- seconds; and how many of the attempts became due in them. An attempt that failed counts as one that did: when it was
-- due is not known any more.
-- Index: scheduled_tasks_ended_finished and the primary key of pgsched_failures, both backwards; scheduled_tasks_held. No
-- locks.
WITH completed AS MATERIALIZED (
    SELECT task_type, claimed_by AS supervisor, run_at, finished_at AS ended,
           extract(epoch FROM finished_at - started_at)::float8 AS seconds
    FROM scheduled_tasks_ended
    WHERE status = 'completed' AND coalesce(finished_at, updated_at) > now() - make_interval(secs => $2::float8)
      AND started_at IS NOT NULL AND finished_at IS NOT NULL
    ORDER BY coalesce(finished_at, updated_at) DESC
    LIMIT $1::bigint
), failed AS MATERIALIZED (
    SELECT task_type, supervisor, 'infinity'::timestamptz AS run_at, failed_at AS ended, seconds
    FROM (SELECT * FROM pgsched_failures ORDER BY id DESC LIMIT $1::bigint) AS newest
    WHERE failed_at > now() - make_interval(secs => $2::float8)
), span AS MATERIALIZED (
    SELECT greatest(now() - make_interval(secs => $2::float8),
                    (SELECT min(ended) FROM completed HAVING count(*) >= $1),
                    (SELECT min(ended) FROM failed HAVING count(*) >= $1)) AS since
), attempt AS (
    SELECT task_type, supervisor, run_at, ended, seconds, true AS over FROM completed
    UNION ALL
    SELECT task_type, supervisor, run_at, ended, seconds, true FROM failed
    UNION ALL
    SELECT task_type, claimed_by, run_at, now(),
           greatest(extract(epoch FROM now() - coalesce(started_at, updated_at)), 0)::float8, false
    FROM scheduled_tasks_live
    WHERE status = 'processing'
)
SELECT greatest(extract(epoch FROM now() - since), 0.001)::float8, task_type, supervisor,
       count(*) FILTER (WHERE over), coalesce(sum(seconds) FILTER (WHERE over), 0),
       count(*) FILTER (WHERE NOT over), coalesce(sum(seconds) FILTER (WHERE NOT over), 0),
       sum(least(seconds, greatest(extract(epoch FROM ended - since), 0))),
       count(*) FILTER (WHERE run_at > since)
FROM attempt
CROSS JOIN span
WHERE ended >= since
GROUP BY since, task_type, supervisor
ORDER BY task_type, supervisor
