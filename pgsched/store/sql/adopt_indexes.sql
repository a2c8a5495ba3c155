-- Plain indexes of the table that is to be adopted which are not the article's: they go with the old table.
SELECT indexrelid::regclass::text
FROM pg_index
WHERE indrelid = 'scheduled_tasks'::regclass AND NOT indisunique
  AND indexrelid::regclass::text NOT IN ('idx_tasks_poll', 'idx_tasks_stuck')
ORDER BY 1
