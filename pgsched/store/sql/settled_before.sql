-- Which of these verdicts were written by an earlier try whose reply was lost? They look fenced, and are not.
--
-- $1, $2: task ids and fences; $3: kinds. Answer: positions, from 1.
--
-- An end keeps the fence. A retry keeps it until the next claim, and its failure bears it for good. A release raises it;
-- whoever raised it instead, the row was not ours to keep.
--
-- Index: the primary key of the live partition, scheduled_tasks_ended_id, pgsched_failures_task; OFFSET keeps the planner
-- from hashing whole tables instead. Locks: none.
SELECT verdict.turn
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) WITH ORDINALITY AS verdict (id, fence, kind, turn)
WHERE CASE verdict.kind
    WHEN 'released' THEN EXISTS (
        SELECT FROM scheduled_tasks_live AS task WHERE task.id = verdict.id AND task.fence > verdict.fence OFFSET 0)
    WHEN 'retry' THEN EXISTS (
        SELECT FROM scheduled_tasks_live AS task
        WHERE task.id = verdict.id AND task.fence = verdict.fence AND (task.status || '') = 'queued'
        OFFSET 0
    ) OR EXISTS (
        SELECT FROM pgsched_failures AS failure WHERE failure.task_id = verdict.id AND failure.fence = verdict.fence
        OFFSET 0)
    ELSE EXISTS (
        SELECT FROM scheduled_tasks_ended AS task
        WHERE task.id = verdict.id AND task.fence = verdict.fence AND task.status = verdict.kind
        OFFSET 0)
END
