-- Is anybody there? Index: none. Locks: none.
SELECT 1
