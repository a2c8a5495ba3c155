-- For how long, and over how many transactions, somebody has kept vacuum from removing dead rows of this database: 0 when
-- nobody does. Other roles' times are shown only to pg_read_all_stats; who is none is told NULL. Locks: none.
SELECT CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN coalesce(max(greatest(seconds, 0)), 0) END,
       coalesce(max(greatest(transactions, 0)), 0)
FROM (
    SELECT date_part('epoch', clock_timestamp() - xact_start) AS seconds,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
      AND coalesce(backend_type, 'client backend') = 'client backend'
      AND coalesce(backend_xmin, backend_xid) IS NOT NULL
      AND NOT EXISTS (SELECT FROM pg_stat_replication AS sender WHERE sender.pid = pg_stat_activity.pid)
    UNION ALL
    SELECT NULL, age(backend_xmin)
    FROM pg_stat_replication
    UNION ALL
    SELECT NULL, age(xmin)
    FROM pg_replication_slots
    UNION ALL
    SELECT date_part('epoch', clock_timestamp() - prepared), age(transaction)
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS holder
