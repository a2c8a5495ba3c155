-- Enter a supervisor, with a lease that begins now.
--
-- $1 to $5: host, boot id, pid namespace, pid, start ticks; $6: processes; $7, $8: queues, task types; $9: version;
-- $10: seconds of the lease; $11: partitions. Index: none. Locks: none that anybody waits for.
INSERT INTO pgsched_supervisors
    (host, boot_id, pid_namespace, pid, started_ticks, processes, queues, task_types, version, lease_until, partitions)
VALUES ($1, $2, $3::bigint, $4::bigint, $5::bigint, $6::integer, $7::text[], $8::text[], $9,
        clock_timestamp() + make_interval(secs => $10::float8), $11::integer[])
RETURNING id
