-- Where pgsched's tables are, and where new ones would go, by the session's search_path. Catalogue only.
SELECT quote_ident(current_schema()) AS current_schema,
       (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('pgsched_schema')) AS versions_in,
       (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('scheduled_tasks')) AS tasks_in,
       (SELECT relkind::text FROM pg_class WHERE oid = to_regclass('scheduled_tasks')) AS tasks_kind,
       current_setting('search_path') AS search_path
