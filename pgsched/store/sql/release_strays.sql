-- Release claims that are the supervisor's without its knowing: the reply to their claim was lost, or what we had
-- written of them is undone. No attempt is counted.
--
-- $1: supervisor; $2, $3: task ids and fences, in id order.
--
-- Index: the primary key of the live partition; for ANY (ARRAY[...]) see claim.sql. Locks: the tasks, in id order.
UPDATE scheduled_tasks_live AS task
SET status = 'queued', fence = task.fence + 1, claimed_by = NULL, started_at = NULL, updated_at = now()
FROM unnest($2::bigint[], $3::bigint[]) AS stray (id, fence)
WHERE task.id = ANY (ARRAY[stray.id]) AND task.fence = stray.fence AND task.claimed_by = $1::bigint
  AND (task.status || '') = 'processing'
RETURNING task.id
