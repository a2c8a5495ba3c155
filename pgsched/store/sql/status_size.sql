-- About how many ended rows there are, as of the last ANALYZE of each range; NULL: there was none. Catalogue only.
SELECT sum(nullif(reltuples, -1))::bigint
FROM pg_partition_tree('scheduled_tasks_ended')
JOIN pg_class ON pg_class.oid = relid
WHERE isleaf
