-- Claim like claim, for a supervisor that is bound to some partitions: each group is that of one partition.
--
-- $1 to $10: see claim.sql; $11: the partition of each group. Answer: claim's, with the partition of each row.
--
-- Index: scheduled_tasks_due of the group's partition; the comparison of its number keeps all others out of the plan when
-- it is run. Then each row by where it lies. Locks: see claim.sql.
WITH candidate AS MATERIALIZED (
    SELECT due.id, due.place, due.size, want.partition
    FROM unnest($4::text[], $5::text[], $6::smallint[], $7::bigint[], $8::timestamptz[], $9::bigint[], $10::boolean[],
                $11::integer[])
        AS want (task_type, queue, priority, quota, floor_run_at, floor_id, passing, partition)
    CROSS JOIN LATERAL (
        SELECT task.id, task.ctid AS place, pg_column_size(task.payload) AS size
        FROM scheduled_tasks_live AS task
        WHERE pgsched_partition(task.id, task.unique_key) = want.partition
          AND task.status = 'queued'
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
    SELECT id, place, partition, pg_try_advisory_xact_lock($2::integer, (id % 2147483647)::integer) AS locked
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
    WHERE asked.locked AND pgsched_partition(task.id, task.unique_key) = asked.partition
      AND task.ctid = asked.place AND task.id IS NOT DISTINCT FROM asked.id
    RETURNING task.id, task.fence, task.task_type, task.queue, task.priority, task.payload, task.retry_count,
              task.max_retries, task.timeout, task.run_at, task.ctid AS place, asked.partition
)
SELECT (NOT EXISTS (SELECT FROM candidate) OR EXISTS (SELECT FROM supervisor))::integer AS id, count(*) AS fence,
       NULL AS task_type, NULL AS queue, NULL::smallint AS priority, NULL AS payload, NULL::integer AS retry_count,
       NULL::integer AS max_retries, NULL::float8 AS timeout, NULL::float8 AS late, NULL AS run_at, NULL::tid AS place,
       NULL::integer AS partition
FROM asked
UNION ALL
SELECT id, fence, task_type, queue, priority,
       CASE WHEN pg_column_size(payload) < 65536 OR octet_length(payload::text) <= 67108864 THEN payload::text ELSE '' END,
       retry_count, max_retries, timeout,
       CASE WHEN isfinite(run_at) THEN date_part('epoch', now()) - date_part('epoch', run_at) ELSE 0 END, run_at::text,
       place, partition
FROM claimed
