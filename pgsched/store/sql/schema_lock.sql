-- Only one host migrates at a time. The lock is taken before anything is read, so that the second sees what the first has
-- done (READ COMMITTED).
SELECT pg_advisory_xact_lock(hashtextextended('pgsched migrate', 0))
