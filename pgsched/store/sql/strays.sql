-- Every claim under the supervisor's name.
--
-- $1: supervisor. Index: scheduled_tasks_held by owner. Locks: none.
SELECT id, fence
FROM scheduled_tasks_live
WHERE status = 'processing' AND claimed_by = $1::bigint
ORDER BY claimed_by, updated_at
