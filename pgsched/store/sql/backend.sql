-- The process that serves this transaction. Index: none. Locks: none.
SELECT pg_backend_pid()
