-- What somebody has taken away from our tables: indexes that are missing or invalid, the trigger, vacuuming, and rows that
-- this role may see: where row level security is on and there is no policy, it sees none, and nobody is told.
-- Catalogue only. Locks: ACCESS SHARE on the partitions, so it waits for whoever holds them for himself.
SELECT 'index' AS kind, expected.name AS name
FROM (
    SELECT unnest(ARRAY['scheduled_tasks_ended_id', 'scheduled_tasks_ended_finished', 'scheduled_tasks_ended_status',
                        'scheduled_tasks_due', 'scheduled_tasks_held', 'pgsched_failures_task'])
    UNION ALL
    SELECT unnest(ARRAY[relname || '_pkey', replace(relname, 'scheduled_tasks_live', 'scheduled_tasks_key')])
    FROM pg_partition_tree(to_regclass('scheduled_tasks_live')) JOIN pg_class ON pg_class.oid = relid
    WHERE isleaf
) AS expected (name)
WHERE NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(expected.name) AND indisvalid)
UNION ALL
SELECT 'trigger', 'pgsched_wake'
WHERE NOT EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid = to_regclass('scheduled_tasks') AND tgname = 'pgsched_wake' AND tgenabled IN ('O', 'A'))
UNION ALL
SELECT 'autovacuum', relname::text
FROM pg_class
WHERE (oid IN (to_regclass('pgsched_supervisors'), to_regclass('pgsched_failures'))
       OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass('scheduled_tasks'))))
  AND EXISTS (SELECT FROM pg_options_to_table(reloptions)
              WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
UNION ALL
SELECT CASE WHEN EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid) THEN 'policies' ELSE 'hidden' END, relname::text
FROM pg_class
WHERE (oid IN (to_regclass('pgsched_supervisors'), to_regclass('pgsched_failures'))
       OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass('scheduled_tasks'))))
  AND row_security_active(oid)
ORDER BY 1, 2
