-- Inserts tasks without a unique key, and returns their ids in the order in which they were given. A relative time starts
-- at the clock and not at the transaction, which may be old. No index but the ones that every row enters; locks nothing.
-- $1 to $8: an array for each field of a NewTask, in turn.
--
-- The ids are drawn first, in order, because RETURNING would ask for the right to read the table. A materialised CTE is
-- read in the order in which it was made.
WITH task AS MATERIALIZED (
    SELECT nextval('scheduled_tasks_id_seq') AS id, given.*
    FROM unnest($1::text[], $2::jsonb[], $3::text[], $4::smallint[],
                $5::integer[], $6::timestamptz[], $7::float8[], $8::float8[])
        WITH ORDINALITY AS given (task_type, payload, queue, priority, max_retries, run_at, delay, timeout, turn)
    ORDER BY turn
), inserted AS (
    INSERT INTO scheduled_tasks (id, task_type, payload, queue, priority, max_retries, run_at, timeout)
    SELECT id, task_type, payload, queue, priority, max_retries,
           coalesce(run_at, clock_timestamp() + make_interval(secs => delay)), timeout
    FROM task
)
SELECT id FROM task
