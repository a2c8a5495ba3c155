-- Inserts one task unless a live one has its unique key, and returns the id of whichever there is. No row: the other one
-- was committed after this statement began; run it again. Looks first, so that the sequence moves only when a row is
-- likely to come. Index: scheduled_tasks_key. Waits for whoever inserts the same key right now.
-- $1 to $9: the fields of a NewTask, in turn.
WITH found AS (
    SELECT id FROM scheduled_tasks WHERE unique_key = $9::text AND status IN ('queued', 'processing')
), inserted AS (
    INSERT INTO scheduled_tasks (task_type, payload, queue, priority, max_retries, run_at, timeout, unique_key)
    SELECT $1, $2::jsonb, $3, $4::smallint, $5::integer,
           coalesce($6::timestamptz, clock_timestamp() + make_interval(secs => $7::float8)), $8::float8, $9
    WHERE NOT EXISTS (SELECT FROM found)
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT id FROM found UNION ALL SELECT id FROM inserted
