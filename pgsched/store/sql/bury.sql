-- Delete dead supervisors that hold nothing any more.
--
-- Index: scheduled_tasks_held by owner, one probe a supervisor (OFFSET keeps the planner from making a join of it).
-- Locks: their rows, skipping what is locked: a claim may be on its way. One that commits between this statement's snapshot
-- and its lock is found by reap_ownerless.
DELETE FROM pgsched_supervisors
WHERE id IN (
    SELECT supervisor.id
    FROM pgsched_supervisors AS supervisor
    WHERE supervisor.lease_until <= clock_timestamp()
      AND NOT EXISTS (
          SELECT FROM scheduled_tasks_live AS task
          WHERE task.status = 'processing' AND task.claimed_by = supervisor.id
          OFFSET 0
      )
    ORDER BY supervisor.id
    FOR UPDATE SKIP LOCKED
)
