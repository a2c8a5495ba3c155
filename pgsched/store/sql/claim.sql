-- Claim due rows of the wanted groups for a supervisor whose lease is alive.
--
-- $1: supervisor; $2: first key of the advisory locks; $3: rows at most;
-- $4 to $7: task type, queue, priority and quota of each group, in turn; $8, $9: where the scan of the group starts;
-- $10: whether it passes over what others may be about to take.
--
-- Answer: a first row that says whether the lease is alive (as id) and counts the rows asked for (as fence), then the
-- claims, in the order of the groups and in due order within each. Where nothing is due nobody asks for the lease: 1.
--
-- Index: scheduled_tasks_due, one ordered range a group; then each row by where it lies, which cannot change while it is
-- locked; with the live rows in several partitions another row may lie at the same place in another one, hence the id (for
-- how it is compared see settle_completed.sql). A row whose version is newer than the statement's snapshot is not found
-- there: it is left, and counted as skipped.
-- Locks: the first task, skipping what is locked; the supervisor's row, so that nobody reaps or deletes it before this
-- commits; then the other tasks. Whoever holds the supervisor's row waits for no task. Without a task that row is not
-- locked: a lock alone has to be written to disk, and of the supervisors that a hint wakes only one finds the task.
--
-- Each of many supervisors comes by all that the others are about to take, and to be refused a lock costs more than to
-- read a row. So a scan that passes over rows does not try those that a transaction has locked or changed which may still
-- be running. Where it has failed the row is free, and passed over all the same while an older one runs: hence only from
-- where the supervisor's own last claim ended. The claim after each discover passes over nothing.
--
-- The candidates are cut off behind the one with which their payloads, as they are stored, come to 4 MiB: whoever claims
-- holds all of them in memory. As text a payload may be much longer than stored; one over 64 MiB comes as the empty text.
-- One that takes less than 64 KiB is so long only with numbers of 100,000 digits, and that is not looked at.
--
-- The candidates stop at the limit, so the groups after it are not touched. They are materialised, so the advisory lock is
-- asked for once for each of them and for no other row, whatever the plan. In other statements a join by id is written as
-- ANY (ARRAY[...]), because with = the planner may turn it around, and walk over all tasks to find the few that are meant.
WITH candidate AS MATERIALIZED (
    SELECT due.id, due.place, due.size
    FROM unnest($4::text[], $5::text[], $6::smallint[], $7::bigint[], $8::timestamptz[], $9::bigint[], $10::boolean[])
        AS want (task_type, queue, priority, quota, floor_run_at, floor_id, passing)
    CROSS JOIN LATERAL (
        SELECT task.id, task.ctid AS place, pg_column_size(task.payload) AS size
        FROM scheduled_tasks_live AS task
        WHERE task.status = 'queued'
          AND task.task_type = want.task_type
          AND task.queue = want.queue
          AND task.priority = want.priority
          AND task.run_at <= now()
          AND (task.run_at, task.id) >= (want.floor_run_at, want.floor_id)
          AND (NOT want.passing OR age(task.xmax) > (SELECT age(pg_snapshot_xmin(pg_current_snapshot())::xid)))
        ORDER BY task.run_at, task.id
        LIMIT want.quota
        FOR UPDATE SKIP LOCKED
    ) AS due
    LIMIT $3::bigint
), supervisor AS MATERIALIZED (
    SELECT FROM pgsched_supervisors
    WHERE id = $1::bigint AND EXISTS (SELECT FROM candidate) AND lease_until > clock_timestamp() FOR KEY SHARE
), asked AS MATERIALIZED (
    SELECT id, place, pg_try_advisory_xact_lock($2::integer, (id % 2147483647)::integer) AS locked
    FROM candidate
    WHERE EXISTS (SELECT FROM supervisor)
      AND ((SELECT sum(size) FROM candidate) <= 4194304
           OR id IN (SELECT id
                     FROM (SELECT id, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM candidate) AS sized
                     WHERE before < 4194304))
), claimed AS (
    UPDATE scheduled_tasks_live AS task
    SET status = 'processing', fence = task.fence + 1, claimed_by = $1::bigint,
        started_at = greatest(now(), task.created_at), updated_at = now()
    FROM asked
    WHERE asked.locked AND task.ctid = asked.place AND task.id IS NOT DISTINCT FROM asked.id
    RETURNING task.id, task.fence, task.task_type, task.queue, task.priority, task.payload, task.retry_count,
              task.max_retries, task.timeout, task.run_at, task.ctid AS place
)
SELECT (NOT EXISTS (SELECT FROM candidate) OR EXISTS (SELECT FROM supervisor))::integer AS id, count(*) AS fence,
       NULL AS task_type, NULL AS queue, NULL::smallint AS priority, NULL AS payload, NULL::integer AS retry_count,
       NULL::integer AS max_retries, NULL::float8 AS timeout, NULL::float8 AS late, NULL AS run_at, NULL::tid AS place
FROM asked
UNION ALL
SELECT id, fence, task_type, queue, priority,
       CASE WHEN pg_column_size(payload) < 65536 OR octet_length(payload::text) <= 67108864 THEN payload::text ELSE '' END,
       retry_count, max_retries, timeout,
       CASE WHEN isfinite(run_at) THEN date_part('epoch', now()) - date_part('epoch', run_at) ELSE 0 END, run_at::text,
       place
FROM claimed
