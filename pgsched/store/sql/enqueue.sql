-- Inserts tasks without a unique key, and returns their ids in the order in which they were given: the sequence counts
-- after the sort. A relative time starts at the clock and not at the transaction, which may be old. No index but the
-- ones that every row enters; locks nothing.
INSERT INTO scheduled_tasks (task_type, payload, queue, priority, max_retries, run_at, timeout)
SELECT task_type, payload, queue, priority, max_retries,
       coalesce(run_at, clock_timestamp() + make_interval(secs => delay)), timeout
FROM unnest(%(task_types)s::text[], %(payloads)s::jsonb[], %(queues)s::text[], %(priorities)s::smallint[],
            %(max_retries)s::integer[], %(run_ats)s::timestamptz[], %(delays)s::float8[], %(timeouts)s::float8[])
    WITH ORDINALITY AS task (task_type, payload, queue, priority, max_retries, run_at, delay, timeout, turn)
ORDER BY turn
RETURNING id
