-- Write like settle_completed, for a supervisor that is bound to some partitions and knows the one of each row.
--
-- $1 to $6: see settle_completed.sql; $7: the partition of each row. Answer: the same. A row that has since been moved to
-- another partition is not written: settle finds it.
--
-- Index: none; each row is looked up where it lies, and the comparison of the partition's number keeps all others out of
-- the plan when it is run. Locks: see settle_completed.sql.
WITH supervisor AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp() FOR KEY SHARE
), verdict AS MATERIALIZED (
    SELECT *
    FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::text[], $6::tid[], $7::integer[])
        WITH ORDINALITY AS verdict (id, fence, seconds, result, place, partition, turn)
    WHERE EXISTS (SELECT FROM supervisor)
), ended AS (
    DELETE FROM scheduled_tasks_live AS task
    USING verdict
    WHERE pgsched_partition(task.id, task.unique_key) = verdict.partition
      AND task.ctid = verdict.place
      AND task.id IS NOT DISTINCT FROM verdict.id
      AND task.fence = verdict.fence
      AND task.claimed_by = $1::bigint
      AND (task.status || '') = 'processing'
    RETURNING task.id, task.task_type, task.payload, task.run_at, task.max_retries, task.retry_count, task.created_at,
              task.queue, task.priority, task.fence, task.claimed_by, task.timeout, task.unique_key, verdict.turn,
              verdict.seconds, verdict.result
), moved AS (
    INSERT INTO scheduled_tasks_ended (
        id, task_type, payload, run_at, status, max_retries, retry_count, created_at, updated_at, queue, priority, fence,
        claimed_by, started_at, finished_at, result, timeout, unique_key)
    SELECT id, task_type, payload, run_at, 'completed', max_retries, retry_count, created_at, now(), queue, priority, fence,
           claimed_by, least(now(), greatest(created_at, now() - make_interval(secs => seconds))), now(), result::jsonb,
           timeout, unique_key
    FROM ended
)
SELECT EXISTS (SELECT FROM supervisor),
       CASE WHEN count(*) < cardinality($2) THEN coalesce(array_agg(turn), '{}') END
FROM ended
