-- Sends everything that the migration names to one schema, and bounds how long it waits for a table's lock.
-- $1: the schema, quoted; $2: milliseconds.
SELECT set_config('search_path', $1::text || ', pg_temp', true),
       set_config('lock_timeout', $2::bigint::text, true)
