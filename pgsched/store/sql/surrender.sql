-- Say that an earlier registration of this very process is over, whatever has become of its row: reap then takes over its
-- claims. A row that somebody has deleted comes back for that, and a lease that was set back by hand ends when it should have.
--
-- $1: supervisor; $2 to $6: host, boot id, pid namespace, pid, start ticks; $7: for how many seconds the lease has been over
-- at least. What was touched since is somebody else's; see reap.sql.
--
-- Index: the primary key. Locks: the row. One of another process that has the same id by now stays as it is.
INSERT INTO pgsched_supervisors AS supervisor
    (id, host, boot_id, pid_namespace, pid, started_ticks, processes, lease_until)
OVERRIDING SYSTEM VALUE
VALUES ($1::bigint, $2, $3, $4::bigint, $5::bigint, $6::bigint, 0,
        clock_timestamp() - make_interval(secs => $7::float8))
ON CONFLICT (id) DO UPDATE
SET lease_until = excluded.lease_until
WHERE supervisor.lease_until < excluded.lease_until
  AND (supervisor.boot_id, supervisor.pid_namespace, supervisor.pid, supervisor.started_ticks)
      = (excluded.boot_id, excluded.pid_namespace, excluded.pid, excluded.started_ticks)
RETURNING supervisor.id
