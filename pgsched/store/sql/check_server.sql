-- What the server says of itself and of this session. No table but pg_catalog's; locks: none. How standbys are fed is shown
-- only to pg_read_all_stats; to others there are none.
SELECT current_setting('server_version_num')::integer AS version_number, current_setting('server_version') AS version,
       pg_is_in_recovery() AS standby, current_setting('transaction_read_only')::boolean AS read_only,
       current_setting('server_encoding') AS encoding, current_database()::text AS database, current_user::text AS role,
       current_setting('fsync')::boolean AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean AS autovacuum,
       current_setting('max_locks_per_transaction')::bigint
           * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint) AS locks,
       current_setting('default_transaction_isolation') AS isolation,
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming') AS standbys,
       (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state <> 'async') AS synchronous,
       extract(epoch FROM clock_timestamp()) AS clock
