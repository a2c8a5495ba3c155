-- A publication of all tables, or of scheduled_tasks, lets nobody update or delete rows of a table that has no replica
-- identity. The tables of ended tasks have no key, because one id may be there twice; so it is the whole row. Only with
-- wal_level = logical does that write anything more.
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'scheduled_tasks_ended'::regclass LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s REPLICA IDENTITY FULL', part);
    END LOOP;
END
$$;

-- As before, and the range that it makes has that replica identity too.
CREATE OR REPLACE FUNCTION pgsched_make_range(width interval, ahead interval) RETURNS text
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
            EXECUTE pg_catalog.format('ALTER TABLE %I REPLICA IDENTITY FULL', made);
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
