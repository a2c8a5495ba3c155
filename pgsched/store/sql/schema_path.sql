-- Sends everything that the migration names to one schema, and bounds how long it waits for a table's lock.
SELECT set_config('search_path', %(schema)s || ', pg_temp', true),
       set_config('lock_timeout', %(lock_timeout_ms)s::bigint::text, true)
