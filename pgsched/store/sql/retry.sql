-- Queues a batch of ended tasks again, due now, with all their retries. The last error stays until the next outcome; the
-- fence rises, so nothing that was known of the task before can write to it. The row moves to the live partition.
-- $1 bigint[]: ids or NULL; $2 text[]: statuses; $3 text[]: task types or NULL; $4 text[]: queues or NULL;
-- $5 bigint: the id after which the batch begins; $6 bigint: how many.
-- A task whose unique key a live task has, or an earlier one of the batch takes, is left as it is; so is one whose id is no
-- longer its own, because somebody has inserted it once more. Says of each why it was left, NULL where it was not.
-- Index: scheduled_tasks_ended_status or the ids. Locks the tasks in the order of their ids.
WITH chosen AS MATERIALIZED (
    SELECT id, unique_key
    FROM scheduled_tasks_ended
    WHERE ($1::bigint[] IS NULL OR id = ANY ($1))
      AND status = ANY ($2::text[])
      AND ($3::text[] IS NULL OR task_type = ANY ($3))
      AND ($4::text[] IS NULL OR queue = ANY ($4))
      AND id > $5::bigint
    ORDER BY id
    LIMIT $6::bigint
    FOR UPDATE
), counted AS MATERIALIZED (
    SELECT id, unique_key,
           (SELECT count(*) FROM scheduled_tasks namesake WHERE namesake.id = chosen.id) > 1 AS shared
    FROM chosen
), judged AS MATERIALIZED (
    SELECT id, CASE
        WHEN shared THEN 'another task has its id'
        WHEN unique_key IS NOT NULL
            AND (row_number() OVER (PARTITION BY unique_key, shared ORDER BY id) > 1
                 OR EXISTS (SELECT FROM scheduled_tasks_live live WHERE live.unique_key = counted.unique_key))
            THEN 'another live task has its unique key'
        END AS reason
    FROM counted
), retried AS (
    UPDATE scheduled_tasks
    SET status = 'queued', retry_count = 0, run_at = now(), fence = fence + 1, claimed_by = NULL, started_at = NULL,
        finished_at = NULL, result = NULL, updated_at = now()
    WHERE id = ANY (ARRAY(SELECT id FROM judged WHERE reason IS NULL)) AND status NOT IN ('queued', 'processing')
    RETURNING id
)
SELECT judged.id, coalesce(reason, CASE WHEN retried.id IS NULL THEN 'somebody else has changed it' END) AS reason
FROM judged LEFT JOIN retried ON retried.id = judged.id
ORDER BY judged.id
