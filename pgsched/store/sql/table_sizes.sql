-- Live rows, dead rows and bytes of each table of ours, with its partitions, indexes and TOAST. Reads the statistics and the
-- catalogue alone, so it costs the same whatever is in the tables; bytes are those of the last VACUUM or ANALYZE, because
-- asking for the present ones would wait for locks. Without track_counts nobody counts rows: NULL. Locks: none.
WITH part AS MATERIALIZED (
    SELECT name, to_regclass(name)::oid AS id
    FROM unnest(ARRAY['scheduled_tasks_live', 'scheduled_tasks_ended', 'pgsched_failures', 'pgsched_supervisors']) AS name
    UNION ALL
    SELECT name, inhrelid
    FROM unnest(ARRAY['scheduled_tasks_live', 'scheduled_tasks_ended']) AS name
    JOIN pg_inherits ON inhparent = to_regclass(name)
)
SELECT part.name,
       sum(CASE WHEN current_setting('track_counts')::boolean THEN pg_stat_get_live_tuples(part.id) END)::bigint,
       sum(CASE WHEN current_setting('track_counts')::boolean THEN pg_stat_get_dead_tuples(part.id) END)::bigint,
       sum(pages.number)::bigint * current_setting('block_size')::bigint
FROM part
CROSS JOIN LATERAL (
    SELECT sum(member.relpages::bigint) AS number
    FROM (
        SELECT part.id AS id
        UNION ALL
        SELECT reltoastrelid FROM pg_class WHERE oid = part.id
        UNION ALL
        SELECT indexrelid FROM pg_index WHERE indrelid = part.id
    ) AS relation
    JOIN pg_class AS member ON member.oid = relation.id
) AS pages
WHERE part.id IS NOT NULL
GROUP BY part.name
ORDER BY part.name
