-- Clean up orphaned tasks that are stuck in the 'processing' state
UPDATE scheduled_tasks
SET status = 'queued',
    retry_count = retry_count + 1,
    error_log = 'Reaper detected orphaned task: worker node terminated unexpectedly',
    updated_at = NOW()
WHERE status = 'processing'
  AND updated_at < NOW() - INTERVAL '5 minutes'
  AND pg_try_advisory_xact_lock(1337, (id % 2147483647)::integer);
