-- Write a batch of verdicts that say "completed", each guarded by its claim's fence: what most settles consist of.
--
-- $1: supervisor; $2, $3: task id and fence; $4: run time in seconds; $5: result, may be NULL as a whole; $6: where the
-- claim left the row. One element a verdict, in id order.
--
-- Answer: like settle's. A row that somebody has updated since its claim lies elsewhere and is not written: settle finds it.
--
-- Index: none; each row is looked up where it lies, which spares it the dead entries that its claim left in the primary
-- key. The place may hold another task by now, hence the id, compared in a way that no index matches: with = the planner
-- may rather walk over the primary key of a table that is small when the plan is made. For the status see settle.sql.
-- Locks: the supervisor's row; then the tasks, in id order.
WITH supervisor AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp() FOR KEY SHARE
), verdict AS MATERIALIZED (
    SELECT *
    FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::text[], $6::tid[])
        WITH ORDINALITY AS verdict (id, fence, seconds, result, place, turn)
    WHERE EXISTS (SELECT FROM supervisor)
), ended AS (
    DELETE FROM scheduled_tasks_live AS task
    USING verdict
    WHERE task.ctid = verdict.place
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
