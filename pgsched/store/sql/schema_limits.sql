-- Lifts the time limits that the role may have, before the migration waits for anything.
SELECT set_config('statement_timeout', '0', true),
       set_config('lock_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true)
