-- The tables of pgsched, version 1. Run by store/schema.py in one transaction, under a lock, with a search_path of
-- the target schema and pg_temp only.
-- The first ten columns of scheduled_tasks are the article's, with its names, types and defaults, so that a plain
-- INSERT from any language is a full enqueue and the article's own statements run unchanged.

-- When a table made after the article is adopted, its sequence is there already, and goes on counting.
CREATE SEQUENCE IF NOT EXISTS scheduled_tasks_id_seq AS bigint;
ALTER SEQUENCE scheduled_tasks_id_seq AS bigint;

CREATE TABLE scheduled_tasks (
    id           bigint       NOT NULL DEFAULT nextval('scheduled_tasks_id_seq'),
    task_type    varchar(64)  NOT NULL,
    payload      jsonb        NOT NULL DEFAULT '{}',
    run_at       timestamptz  NOT NULL,
    status       varchar(20)  NOT NULL DEFAULT 'queued',
    max_retries  integer      NOT NULL DEFAULT 3 CHECK (max_retries >= 0),
    retry_count  integer      NOT NULL DEFAULT 0 CHECK (retry_count >= 0 AND retry_count < 2147483647),
    error_log    text,
    created_at   timestamptz  NOT NULL DEFAULT now(),
    updated_at   timestamptz  NOT NULL DEFAULT now(),
    queue        varchar(64)  NOT NULL DEFAULT 'default' CHECK (queue <> ''),
    priority     smallint     NOT NULL DEFAULT 0,
    fence        bigint       NOT NULL DEFAULT 0,
    claimed_by   bigint,
    started_at   timestamptz,
    finished_at  timestamptz,
    result       jsonb,
    timeout      double precision CHECK (timeout > 0 AND timeout < 1e9),
    unique_key   text         CHECK (length(unique_key) BETWEEN 1 AND 512)
) PARTITION BY LIST (status);

ALTER SEQUENCE scheduled_tasks_id_seq OWNED BY scheduled_tasks.id;

-- Rows move to the default partition when they end, so that the one that is claimed from stays small.
-- The rest takes every row of whose time nobody has made a range; a supervisor that prunes makes them ahead, so that what
-- is old goes with its table. The article's statements end a row without a finished_at.
CREATE TABLE scheduled_tasks_ended PARTITION OF scheduled_tasks DEFAULT
    PARTITION BY RANGE ((coalesce(finished_at, updated_at)));
CREATE TABLE scheduled_tasks_ended_rest PARTITION OF scheduled_tasks_ended DEFAULT;

-- Before it attaches a range PostgreSQL reads the whole rest, locked against everybody, to see that none of its rows
-- belongs there; unless a CHECK tells it so. This one tells nothing, until pgsched_make_range, which has asked an
-- index, lets it tell of one range for the rest of its transaction. Nobody else ever sees it do so.
CREATE FUNCTION pgsched_in_range(ended timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN false;
ALTER TABLE scheduled_tasks_ended_rest ADD CONSTRAINT scheduled_tasks_ended_rest_in_no_range
    CHECK (NOT pgsched_in_range(coalesce(finished_at, updated_at)));

-- Not unique: a settle must not fail because somebody inserted an id by hand that an ended row bears already.
CREATE INDEX scheduled_tasks_ended_id ON scheduled_tasks_ended (id);
-- Prune: oldest first. A status that is nobody's here is never pruned, so it does not stand in the way either.
CREATE INDEX scheduled_tasks_ended_finished ON scheduled_tasks_ended ((coalesce(finished_at, updated_at)))
    WHERE status IN ('completed', 'failed', 'cancelled');
-- What people look for among millions of completed rows.
CREATE INDEX scheduled_tasks_ended_status ON scheduled_tasks_ended (status, id)
    WHERE status <> 'completed';

-- Makes scheduled_tasks_live, in one table or split into partitions, from 0 on; the rows that there are move along. A row is
-- where the hash of its unique key, or its id, leads it, so that a key stays unique. For `pgsched migrate`.
CREATE FUNCTION pgsched_split(partitions integer) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    live    CONSTANT text := 'scheduled_tasks_live';
    -- fillfactor leaves room on the page for the claim's new row version.
    store   CONSTANT text := 'WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,'
                             ' autovacuum_vacuum_insert_scale_factor = 0.2)';
    before  CONSTANT regclass := to_regclass(live);
    leaf    text;
    owner   name;
    rights  text[];
    restore text;
    moved   bigint := 0;
BEGIN
    LOCK TABLE scheduled_tasks IN ACCESS EXCLUSIVE MODE;
    IF before IS NOT NULL THEN
        SELECT array_agg(format('GRANT %s%s ON scheduled_tasks_live TO %s%s', privilege_type,
                                '(' || quote_ident(column_name) || ')',
                                CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
                                CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END))
        INTO rights
        FROM (
            SELECT NULL::name AS column_name, acl.* FROM pg_class, aclexplode(relacl) AS acl WHERE oid = before
            UNION ALL
            SELECT attname, acl.* FROM pg_attribute, aclexplode(attacl) AS acl WHERE attrelid = before AND attnum > 0
        ) AS granted;
        owner := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = before);
        ALTER TABLE scheduled_tasks DETACH PARTITION scheduled_tasks_live;
        ALTER TABLE scheduled_tasks_live RENAME TO pgsched_unsplit;
        CREATE TEMPORARY TABLE pgsched_moving ON COMMIT DROP AS SELECT * FROM pgsched_unsplit;
        DROP TABLE pgsched_unsplit;
    END IF;
    -- RETURN is read now: as text it would be read by whoever inserts, with his search_path.
    EXECUTE format('CREATE OR REPLACE FUNCTION pgsched_partition(id bigint, unique_key text) RETURNS integer'
                   ' LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN %s',
                   CASE partitions WHEN 1 THEN '0' ELSE
                       format('((CASE WHEN unique_key IS NULL THEN id'
                              ' ELSE pg_catalog.hashtextextended(unique_key, 0) END'
                              ' & 9223372036854775807) %% %s::bigint)::integer', partitions) END);
    EXECUTE format('CREATE TABLE %I (LIKE scheduled_tasks INCLUDING DEFAULTS INCLUDING CONSTRAINTS) %s', live,
                   CASE partitions WHEN 1 THEN store ELSE 'PARTITION BY LIST (pgsched_partition(id, unique_key))' END);
    FOR number IN 0 .. partitions - 1 LOOP
        leaf := live;
        IF partitions > 1 THEN
            leaf := format('%s_%s', live, number);
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES IN (%s) %s', leaf, live, number, store);
        END IF;
        -- The keys stand on each table: a key over several would have to contain what they are split by.
        -- fillfactor: each claim adds an entry beside the one that it found; without room for it, it would split the page.
        EXECUTE format('ALTER TABLE %I ADD PRIMARY KEY (id) WITH (fillfactor = 45)', leaf);
        -- At most one live task per key.
        EXECUTE format('CREATE UNIQUE INDEX %I ON %I (unique_key) WHERE unique_key IS NOT NULL',
                       'scheduled_tasks_key' || substr(leaf, length(live) + 1), leaf);
    END LOOP;
    IF before IS NOT NULL THEN
        INSERT INTO scheduled_tasks_live SELECT * FROM pgsched_moving;
        GET DIAGNOSTICS moved = ROW_COUNT;
    END IF;
    -- Discover and claim: each (task_type, queue, priority) group in due order.
    CREATE INDEX scheduled_tasks_due ON scheduled_tasks_live (task_type, queue, priority, run_at, id)
        WHERE status = 'queued';
    -- Reap: by owner; ownerless claims and the article's reaper by age.
    CREATE INDEX scheduled_tasks_held ON scheduled_tasks_live (claimed_by, updated_at)
        WHERE status = 'processing';
    ALTER TABLE scheduled_tasks ATTACH PARTITION scheduled_tasks_live FOR VALUES IN ('queued', 'processing');
    IF before IS NOT NULL THEN
        rights := rights || ARRAY(SELECT format('ALTER TABLE %I OWNER TO %I', relid::regclass, owner)
                                  FROM pg_partition_tree('scheduled_tasks_live') WHERE owner <> current_user);
        FOREACH restore IN ARRAY rights LOOP
            EXECUTE restore;
        END LOOP;
        ANALYZE scheduled_tasks_live;
    END IF;
    RETURN moved;
END
$$;
REVOKE EXECUTE ON FUNCTION pgsched_split(integer) FROM PUBLIC;
SELECT pgsched_split(1);

CREATE TABLE pgsched_supervisors (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host          text        NOT NULL,
    boot_id       text        NOT NULL,
    pid_namespace bigint      NOT NULL,
    pid           bigint      NOT NULL,
    started_ticks bigint      NOT NULL,
    processes     integer     NOT NULL,
    queues        text[]      NOT NULL DEFAULT '{}',
    task_types    text[]      NOT NULL DEFAULT '{}',
    partitions    integer[]   NOT NULL DEFAULT '{}',
    version       text        NOT NULL DEFAULT '',
    listening     boolean     NOT NULL DEFAULT false,
    registered_at timestamptz NOT NULL DEFAULT now(),
    lease_until   timestamptz NOT NULL,
    -- What was last counted for all of them, when, and how long that took; it stands in any row.
    depths        jsonb,
    depths_at     timestamptz,
    depths_took   interval
) WITH (fillfactor = 50);

CREATE TABLE pgsched_failures (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id      bigint      NOT NULL,
    attempt      integer     NOT NULL,
    fence        bigint      NOT NULL,
    task_type    text        NOT NULL,
    outcome      text        NOT NULL,
    error        text        NOT NULL,
    traceback    text,
    exit_code    integer,
    signal       integer,
    out_of_memory boolean,
    cpu_seconds  double precision,
    peak_memory  bigint,
    stderr       text,
    stack        text,
    seconds      double precision NOT NULL,
    supervisor   bigint,
    failed_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX pgsched_failures_task ON pgsched_failures (task_id);

-- A hint for supervisors that sleep. NOTIFY serialises commits on the server, so nobody is woken who does not sleep.
-- Whoever may insert a task need not have rights on our other tables, nor have them on his search_path: hence the
-- definer's rights and the search_path of this migration. It does not keep out what somebody else may create in our
-- schema and what fits better than pg_catalog's: so below a varchar is compared as text, an oid as an oid, and a
-- function that takes anything is named with its schema.
CREATE FUNCTION pgsched_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM pgsched_supervisors WHERE listening AND lease_until > now()) THEN
        PERFORM pg_notify('pgsched', '');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER pgsched_wake AFTER INSERT ON scheduled_tasks
    FOR EACH STATEMENT EXECUTE FUNCTION pgsched_wake();

-- The ranges of scheduled_tasks_ended. Who prunes need not own the tables: hence the definer's rights, and no right for
-- everybody. Each call makes or drops one range at most, so that its locks are short, and waits for none of them: whoever
-- waits for a table's lock makes all others wait behind him. What could not be done is done by a later call.
CREATE FUNCTION pgsched_ranges() RETURNS TABLE (name text, tasks bigint, upper timestamptz)
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT child.relname, greatest(child.reltuples, 0)::bigint,
           substring(bound.text FROM 'TO \(''([^'']*)''\)')::timestamptz
    FROM pg_inherits
    JOIN pg_class child ON child.oid = inhrelid,
         pg_get_expr(child.relpartbound, child.oid) AS bound (text)
    WHERE inhparent = 'scheduled_tasks_ended'::regclass::oid AND bound.text <> 'DEFAULT'
$$;

-- Whether a table of ended tasks holds one that ended in that time and has a status that is nobody's here. Asked in the
-- way that the index by status answers.
CREATE FUNCTION pgsched_strange(part text, first timestamptz, last timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    strange boolean;
BEGIN
    EXECUTE pg_catalog.format(
        'SELECT EXISTS (SELECT FROM %1$I WHERE %2$s AND status::text < %3$L)'
        ' OR EXISTS (SELECT FROM %1$I WHERE %2$s AND status::text > %3$L AND status::text < %4$L)'
        ' OR EXISTS (SELECT FROM %1$I WHERE %2$s AND status::text > %4$L)',
        part,
        'status::text <> ''completed'''
        ' AND coalesce(finished_at, updated_at) >= $1 AND coalesce(finished_at, updated_at) < $2',
        'cancelled', 'failed')
    INTO strange USING first, last;
    RETURN strange;
END
$$;

-- Returns the name of the range that it has made, NULL when there was none to make. An attached table needs no lock
-- that a claim or a settle would wait for, as one that is created in its place does. The rest is locked for a moment.
-- Under another isolation what was written until the lock came would not be seen, so it is not tried.
CREATE FUNCTION pgsched_make_range(width interval, ahead interval) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '100ms' SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO' AS $$
DECLARE
    -- A Monday.
    origin  CONSTANT timestamptz := '2001-01-01';
    telling CONSTANT text := 'CREATE OR REPLACE FUNCTION pgsched_in_range(ended timestamptz) RETURNS boolean'
                             ' LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ';
    first   timestamptz;
    last    timestamptz;
    taken   boolean;
    made    text;
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
       OR NOT pg_try_advisory_xact_lock(pg_catalog.hashtextextended('pgsched ranges', 0)) THEN
        RETURN NULL;
    END IF;
    SELECT greatest(max(upper), date_bin(width, now(), origin)) INTO first FROM pgsched_ranges();
    WHILE first < now() + ahead LOOP
        last := date_bin(width, first, origin) + width;
        -- Asked twice, because only under the lock is the answer final, and nobody should wait for one that is no.
        FOR turn IN 1..2 LOOP
            taken := EXISTS (
                SELECT FROM scheduled_tasks_ended_rest
                WHERE status::text IN ('completed', 'failed', 'cancelled')
                  AND coalesce(finished_at, updated_at) >= first AND coalesce(finished_at, updated_at) < last
            ) OR pgsched_strange('scheduled_tasks_ended_rest', first, last);
            EXIT WHEN taken OR turn = 2;
            LOCK TABLE ONLY scheduled_tasks_ended IN SHARE UPDATE EXCLUSIVE MODE;
            LOCK TABLE scheduled_tasks_ended_rest IN ACCESS EXCLUSIVE MODE;
        END LOOP;
        -- What is taken goes from the rest by batches.
        IF NOT taken THEN
            made := 'scheduled_tasks_ended_' || to_char(first, 'YYYYMMDD_HH24MI');
            EXECUTE pg_catalog.format(
                'CREATE TABLE %I (LIKE scheduled_tasks_ended INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', made);
            EXECUTE telling || pg_catalog.format('ended >= %L::timestamptz AND ended < %L::timestamptz', first, last);
            EXECUTE pg_catalog.format(
                'ALTER TABLE scheduled_tasks_ended ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                made, first, last);
            EXECUTE telling || 'false';
            RETURN made;
        END IF;
        first := last;
    END LOOP;
    RETURN NULL;
EXCEPTION
    WHEN lock_not_available OR deadlock_detected THEN
        RETURN NULL;
    WHEN OTHERS THEN
        -- An error of this kind tells a supervisor that it was refused; others, that the database is lost.
        RAISE EXCEPTION '%', SQLERRM;
END
$$;
REVOKE EXECUTE ON FUNCTION pgsched_make_range(interval, interval) FROM PUBLIC;

-- Drops the oldest range of which every task ended longer ago than that, and returns its name and about how many tasks it
-- held; no row when there is none, or it is in use. One that holds a status that is nobody's here is left to prune.
CREATE FUNCTION pgsched_drop_range(older_than interval) RETURNS TABLE (dropped text, tasks bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '100ms' SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO' AS $$
DECLARE
    old     record;
    strange boolean;
BEGIN
    IF older_than < '0'::interval THEN
        RAISE EXCEPTION 'older_than is negative: %', older_than;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
       OR NOT pg_try_advisory_xact_lock(pg_catalog.hashtextextended('pgsched ranges', 0)) THEN
        RETURN;
    END IF;
    FOR old IN SELECT * FROM pgsched_ranges() AS made WHERE made.upper <= now() - older_than ORDER BY made.upper LOOP
        -- Asked twice, like above.
        FOR turn IN 1..2 LOOP
            strange := pgsched_strange(old.name, '-infinity'::timestamptz, 'infinity'::timestamptz);
            EXIT WHEN strange OR turn = 2;
            -- First what a settle locks first. Who holds that makes settles wait, and waits for nothing more himself.
            LOCK TABLE ONLY scheduled_tasks_ended IN ACCESS EXCLUSIVE MODE;
            EXECUTE pg_catalog.format(
                'LOCK TABLE %I, scheduled_tasks_ended_rest IN ACCESS EXCLUSIVE MODE NOWAIT', old.name);
        END LOOP;
        IF NOT strange THEN
            EXECUTE pg_catalog.format('DROP TABLE %I', old.name);
            RETURN QUERY SELECT old.name, old.tasks;
            RETURN;
        END IF;
    END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN;
END
$$;
REVOKE EXECUTE ON FUNCTION pgsched_drop_range(interval) FROM PUBLIC;
