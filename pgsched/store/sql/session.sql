-- Once for each new connection that is ours alone: a role may have a stricter default, under which a claim would be refused
-- where it should skip. Index: none. Locks: none.
SELECT set_config('default_transaction_isolation', 'read committed', false)
