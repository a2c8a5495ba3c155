-- Cancels a batch of live tasks. The fence rises, so whoever works on one can write nothing any more. The row moves to the
-- ended partition. Says of each why it was left, which is never.
-- $1 bigint[]: ids or NULL; $2 text[]: statuses; $3 text[]: task types or NULL; $4 text[]: queues or NULL;
-- $5 bigint: the id after which the batch begins; $6 bigint: how many.
-- Index: the primary key of the live partition. Locks the tasks in the order of their ids.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM scheduled_tasks_live
    WHERE ($1::bigint[] IS NULL OR id = ANY ($1))
      AND status = ANY ($2::text[])
      AND ($3::text[] IS NULL OR task_type = ANY ($3))
      AND ($4::text[] IS NULL OR queue = ANY ($4))
      AND id > $5::bigint
    ORDER BY id
    LIMIT $6::bigint
    FOR UPDATE
), cancelled AS (
    UPDATE scheduled_tasks
    SET status = 'cancelled', fence = fence + 1, claimed_by = NULL, finished_at = now(), updated_at = now()
    WHERE id = ANY (ARRAY(SELECT id FROM chosen)) AND status IN ('queued', 'processing')
    RETURNING id
)
SELECT id, NULL AS reason FROM cancelled ORDER BY id
