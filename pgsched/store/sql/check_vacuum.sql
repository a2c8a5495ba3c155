-- The live tables of which autovacuum leaves more dead rows than it should, with the settings that it goes by.
-- Catalogue and statistics. Locks: as check_tables.sql.
--
-- $1 bigint: dead rows, $2 float8: times the rows that are alive, above which both it is too much.
SELECT relname::text AS name, n_dead_tup AS dead, n_live_tup AS alive,
       date_part('epoch', clock_timestamp() - greatest(last_autovacuum, last_vacuum)) AS seconds,
       current_setting('autovacuum_naptime') AS pause,
       coalesce(nullif(current_setting('autovacuum_vacuum_cost_limit'), '-1'), current_setting('vacuum_cost_limit')) AS cost
FROM pg_stat_user_tables
WHERE relid IN (SELECT relid FROM pg_partition_tree(to_regclass('scheduled_tasks_live')))
  AND n_dead_tup > $1::bigint AND n_dead_tup > $2::float8 * n_live_tup
ORDER BY relname
