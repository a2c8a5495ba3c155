-- The partitions of the live tasks, and whether a live supervisor serves each; none when they are in one table.
-- Index: none, the table has a row a supervisor. Catalogue, and no locks.
SELECT part.number, EXISTS (
    SELECT FROM pgsched_supervisors
    WHERE lease_until > now() AND (partitions = '{}' OR part.number = ANY (partitions))
) AS served
FROM generate_series(0, (SELECT count(*)::integer FROM pg_inherits
                         WHERE inhparent = to_regclass('scheduled_tasks_live')) - 1) AS part (number)
ORDER BY part.number
