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
-- fillfactor leaves room on the page for the claim's new row version.
CREATE TABLE scheduled_tasks_live PARTITION OF scheduled_tasks
    FOR VALUES IN ('queued', 'processing')
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);
CREATE TABLE scheduled_tasks_ended PARTITION OF scheduled_tasks DEFAULT;

-- The keys stand on the partitions: a key over the whole table would have to contain status.
-- fillfactor: each claim adds an entry beside the one that it found; without room for it, it would split the page.
ALTER TABLE scheduled_tasks_live ADD PRIMARY KEY (id) WITH (fillfactor = 45);
-- Not unique: a settle must not fail because somebody inserted an id by hand that an ended row bears already.
CREATE INDEX scheduled_tasks_ended_id ON scheduled_tasks_ended (id);
-- Prune: oldest first. The article's statements end a row without a finished_at. A status that is nobody's here is
-- never pruned, so it does not stand in the way either.
CREATE INDEX scheduled_tasks_ended_finished ON scheduled_tasks_ended ((coalesce(finished_at, updated_at)))
    WHERE status IN ('completed', 'failed', 'cancelled');
-- What people look for among millions of completed rows.
CREATE INDEX scheduled_tasks_ended_status ON scheduled_tasks_ended (status, id)
    WHERE status <> 'completed';

-- Discover and claim: each (task_type, queue, priority) group in due order.
CREATE INDEX scheduled_tasks_due ON scheduled_tasks_live (task_type, queue, priority, run_at, id)
    WHERE status = 'queued';
-- Reap: by owner; ownerless claims and the article's reaper by age.
CREATE INDEX scheduled_tasks_held ON scheduled_tasks_live (claimed_by, updated_at)
    WHERE status = 'processing';
-- At most one live task per key.
CREATE UNIQUE INDEX scheduled_tasks_key ON scheduled_tasks_live (unique_key)
    WHERE unique_key IS NOT NULL;

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
-- definer's rights and the search_path of this migration, which nobody else's objects can slip into.
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
