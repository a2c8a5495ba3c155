-- Write a batch of verdicts, each guarded by its claim's fence, and the failures behind them.
--
-- $1: supervisor; $2, $3: task id and fence; $4: kind; $5: run time and $6: retry delay in seconds; $7: result; $8: error;
-- $9: what pgsched_failures keeps, as a JSON object. One element a verdict, in id order; the last five may be NULL as a
-- whole.
--
-- Answer: whether the lease is alive, and the positions, from 1, of the verdicts that were written; NULL when all were.
--
-- Index: the primary key of the live partition. The status is compared in a way that no index matches: planned on the
-- index of processing rows, this would walk over all the dead entries that an old snapshot keeps there. For
-- ANY (ARRAY[...]) see claim.sql.
-- Locks: the supervisor's row; then the tasks that end, then those that return, both in id order.
--
-- A row that ends is moved by hand instead of by an update of the whole table: whoever waits for it then finds it gone
-- instead of failing because it "was moved to another partition", and PostgreSQL 18 plans the update of the whole table
-- with a scan of the partition in spite of the hints.
WITH supervisor AS MATERIALIZED (
    SELECT id FROM pgsched_supervisors WHERE id = $1::bigint AND lease_until > clock_timestamp() FOR KEY SHARE
), verdict AS MATERIALIZED (
    SELECT *
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::float8[], $6::float8[], $7::text[], $8::text[], $9::json[])
        WITH ORDINALITY AS verdict (id, fence, kind, seconds, delay, result, error, failure, turn)
    WHERE EXISTS (SELECT FROM supervisor)
), ended AS (
    DELETE FROM scheduled_tasks_live AS task
    USING verdict
    WHERE verdict.kind IN ('completed', 'failed')
      AND task.id = ANY (ARRAY[verdict.id])
      AND task.fence = verdict.fence
      AND task.claimed_by = $1::bigint
      AND (task.status || '') = 'processing'
    RETURNING task.*, verdict.turn, verdict.kind, verdict.seconds, verdict.result AS new_result, verdict.error,
              verdict.failure
), moved AS (
    INSERT INTO scheduled_tasks_ended (
        id, task_type, payload, run_at, status, max_retries, retry_count, error_log, created_at, updated_at, queue,
        priority, fence, claimed_by, started_at, finished_at, result, timeout, unique_key)
    SELECT id, task_type, payload, run_at, kind, max_retries, retry_count,
           CASE kind WHEN 'failed' THEN error END, created_at, now(), queue, priority, fence, claimed_by,
           least(now(), greatest(created_at, now() - make_interval(secs => seconds))), now(),
           CASE kind WHEN 'completed' THEN new_result::jsonb END, timeout, unique_key
    FROM ended
), returned AS (
    UPDATE scheduled_tasks_live AS task
    SET status = 'queued',
        run_at = CASE verdict.kind WHEN 'retry' THEN now() + make_interval(secs => verdict.delay) ELSE task.run_at END,
        retry_count = task.retry_count + (verdict.kind = 'retry')::integer,
        error_log = CASE verdict.kind WHEN 'retry' THEN verdict.error ELSE task.error_log END,
        fence = task.fence + (verdict.kind = 'released')::integer,
        claimed_by = NULL, started_at = NULL, updated_at = now()
    FROM verdict
    WHERE verdict.kind IN ('retry', 'released')
      AND task.id = ANY (ARRAY[verdict.id])
      AND task.fence = verdict.fence
      AND task.claimed_by = $1::bigint
      AND (task.status || '') = 'processing'
    RETURNING task.id, verdict.turn, verdict.failure
), settled AS (
    SELECT id, turn, failure FROM ended
    UNION ALL
    SELECT id, turn, failure FROM returned
), failures AS (
    INSERT INTO pgsched_failures (
        task_id, attempt, fence, task_type, outcome, error, traceback, exit_code, signal, out_of_memory, cpu_seconds,
        peak_memory, stderr, stack, seconds, supervisor)
    SELECT settled.id, failure.attempt, failure.fence, failure.task_type, failure.outcome, failure.error,
           failure.traceback, failure.exit_code, failure.signal, failure.out_of_memory, failure.cpu_seconds,
           failure.peak_memory, failure.stderr, failure.stack, failure.seconds, $1::bigint
    FROM settled
    CROSS JOIN LATERAL json_to_record(settled.failure) AS failure (
        attempt integer, fence bigint, task_type text, outcome text, error text, traceback text, exit_code integer,
        signal integer, out_of_memory boolean, cpu_seconds float8, peak_memory bigint, stderr text, stack text,
        seconds float8)
    WHERE settled.failure IS NOT NULL
)
SELECT EXISTS (SELECT FROM supervisor),
       CASE WHEN count(*) < cardinality($2) THEN coalesce(array_agg(turn), '{}') END
FROM settled
