-- Who keeps vacuum from removing dead rows of this database. pg_stat_activity shows the ages of everybody's snapshots, but
-- the times of other roles' transactions, and what kind of session it is, only to pg_read_all_stats. Locks: none.
--
-- $1 float8: seconds, $2 bigint: transactions, after which something is old.
SELECT 'session' AS kind, pid::text AS name, usename::text AS role, application_name AS application,
       date_part('epoch', clock_timestamp() - xact_start) AS seconds,
       greatest(age(backend_xmin), age(backend_xid))::bigint AS transactions
FROM pg_stat_activity
WHERE datname = current_database() AND usename IS NOT NULL AND pid <> pg_backend_pid()
  AND coalesce(backend_type, 'client backend') = 'client backend'
  AND NOT EXISTS (SELECT FROM pg_stat_replication AS sender WHERE sender.pid = pg_stat_activity.pid)
  AND (xact_start < clock_timestamp() - make_interval(secs => $1::float8)
       OR greatest(age(backend_xmin), age(backend_xid)) > $2::bigint)
UNION ALL
SELECT 'standby', pid::text, usename::text, application_name, NULL, age(backend_xmin)
FROM pg_stat_replication
WHERE age(backend_xmin) > $2::bigint
UNION ALL
SELECT 'slot', slot_name::text, NULL, NULL, NULL, age(xmin)
FROM pg_replication_slots
WHERE xmin IS NOT NULL AND (NOT active OR age(xmin) > $2::bigint)
UNION ALL
SELECT 'prepared', gid, owner::text, NULL, date_part('epoch', clock_timestamp() - prepared), age(transaction)
FROM pg_prepared_xacts
WHERE database = current_database()
  AND (prepared < clock_timestamp() - make_interval(secs => $1::float8) OR age(transaction) > $2::bigint)
ORDER BY 1, 2
