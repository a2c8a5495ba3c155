-- Inserts one task without a unique key, and returns its id. Like enqueue, but arrays double the time of a single row.
-- $1 to $8: the fields of a NewTask, in turn. No index but the ones that every row enters; locks nothing.
WITH task AS MATERIALIZED (
    SELECT nextval('scheduled_tasks_id_seq') AS id
), inserted AS (
    INSERT INTO scheduled_tasks (id, task_type, payload, queue, priority, max_retries, run_at, timeout)
    SELECT id, $1, $2::jsonb, $3, $4::smallint, $5::integer,
           coalesce($6::timestamptz, clock_timestamp() + make_interval(secs => $7::float8)), $8::float8
    FROM task
)
SELECT id FROM task
