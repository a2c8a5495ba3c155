-- About how many ended rows there are, as of the last ANALYZE; NULL: there was none. Catalogue only.
SELECT nullif(reltuples, -1)::bigint FROM pg_class WHERE oid = 'scheduled_tasks_ended'::regclass
