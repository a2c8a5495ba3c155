-- Inserts one task unless a live one has its unique key, and returns the id of whichever there is. No row: the other one
-- was committed after this statement began; run it again. Looks first, so that the sequence moves only when a row is
-- likely to come. Index: scheduled_tasks_key. Waits for whoever inserts the same key right now.
WITH found AS (
    SELECT id FROM scheduled_tasks WHERE unique_key = %(unique_key)s AND status IN ('queued', 'processing')
), inserted AS (
    INSERT INTO scheduled_tasks (task_type, payload, queue, priority, max_retries, run_at, timeout, unique_key)
    SELECT %(task_type)s, %(payload)s::jsonb, %(queue)s, %(priority)s, %(max_retries)s,
           coalesce(%(run_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(delay)s)),
           %(timeout)s::float8, %(unique_key)s
    WHERE NOT EXISTS (SELECT FROM found)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM found UNION ALL SELECT id FROM inserted
