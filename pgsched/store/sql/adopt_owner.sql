-- The statements that give everything that this migration made to the owner of the adopted table, when a superuser runs
-- it. The sequence follows its table. Catalogue only.
WITH owner AS (
    SELECT relowner AS oid, quote_ident(pg_get_userbyid(relowner)) AS name
    FROM pg_class WHERE oid = 'pgsched_adopted'::regclass AND pg_get_userbyid(relowner) <> current_user
)
SELECT format('ALTER TABLE %I OWNER TO %s', ours, owner.name)
FROM owner, unnest(ARRAY['scheduled_tasks', 'scheduled_tasks_live', 'scheduled_tasks_ended',
                         'scheduled_tasks_ended_rest', 'pgsched_supervisors', 'pgsched_failures', 'pgsched_schema']) ours
UNION ALL
SELECT format('ALTER FUNCTION %s OWNER TO %s', ours, owner.name)
FROM owner, unnest(ARRAY['pgsched_wake()', 'pgsched_ranges()', 'pgsched_split(integer)', 'pgsched_partition(bigint, text)',
                         'pgsched_in_range(timestamptz)', 'pgsched_strange(text, timestamptz, timestamptz)',
                         'pgsched_make_range(interval, interval)', 'pgsched_drop_range(interval)']) ours
