-- The newest version that was applied; 0 when none was. Primary key.
SELECT coalesce(max(version), 0) FROM pgsched_schema
