-- The columns of the table that is to be adopted, types without their lengths. Catalogue only.
SELECT attname AS name, format_type(atttypid, NULL) AS type
FROM pg_attribute
WHERE attrelid = 'scheduled_tasks'::regclass AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
