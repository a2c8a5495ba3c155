-- Once for each new connection that is ours alone: a role may have a stricter default, under which a claim would be refused
-- where it should skip, and a session that waits for work be ended. Index: none. Locks: none.
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('idle_session_timeout', '0', false)
