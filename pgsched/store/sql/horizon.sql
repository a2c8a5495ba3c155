-- The oldest transaction of the server that is not over, and the one that would begin next: equal while none is under way
-- that has written anything. The snapshot's own end is no such number: it knows only of transactions that are over.
-- Locks: none.
SELECT oldest::text::bigint, oldest::text::bigint + age(oldest::xid)
FROM pg_snapshot_xmin(pg_current_snapshot()) AS snapshot (oldest)
