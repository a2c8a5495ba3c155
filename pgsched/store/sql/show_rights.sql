-- Whether the role may read what tasks are called with and what they return. Catalogue only; no rights needed. Locks: none.
SELECT bool_and(has_column_privilege('scheduled_tasks', name, 'SELECT')) AS may_read
FROM unnest(ARRAY['payload', 'result']) AS name
