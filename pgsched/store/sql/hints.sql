-- What the planner may use, and how long the server may take: for a session that is ours alone, or with a pooler as the
-- first statement of every transaction.
--
-- $1: milliseconds that a statement may run, unless the role or the database has set a lower limit already; $2: whether all
-- of it ends with the transaction; $3: milliseconds that it may wait for a lock, likewise, or 0 to leave that as it is.
--
-- The statistics of a queue are always wrong. A plan made while the table was empty would read all of it after the next
-- bulk load, so only the index lookups are left that the statements are written for, and the order that they give. No
-- better plan could be made for certain parameters then, and making one costs as much as claiming thirty rows. The time
-- limit ends a statement that its client has given up on. DateStyle makes run_at's text unambiguous. Index: none.
-- Locks: none.
SELECT set_config('enable_seqscan', 'off', $2::boolean),
       set_config('enable_bitmapscan', 'off', $2::boolean),
       set_config('jit', 'off', $2::boolean),
       set_config('plan_cache_mode', 'force_generic_plan', $2::boolean),
       set_config('DateStyle', 'ISO', $2::boolean),
       CASE WHEN current_setting('statement_timeout')::interval NOT BETWEEN interval '1 ms' AND ($1::text || ' ms')::interval
            THEN set_config('statement_timeout', $1, $2::boolean) END,
       CASE WHEN $3::text <> '0'
                 AND current_setting('lock_timeout')::interval NOT BETWEEN interval '1 ms' AND ($3::text || ' ms')::interval
            THEN set_config('lock_timeout', $3, $2::boolean) END
