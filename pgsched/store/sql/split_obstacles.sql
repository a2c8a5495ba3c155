-- What somebody has hung on the tables of live tasks themselves, and would be lost when they are made anew: indexes,
-- triggers, rules, policies, row security, constraints, statistics, publications, views, storage parameters. What hangs
-- on scheduled_tasks comes back with the new ones, and is no obstacle. Catalogue only.
WITH live AS (
    SELECT pg_class.* FROM pg_partition_tree('scheduled_tasks_live') JOIN pg_class ON pg_class.oid = relid
),
dependent AS (
    SELECT depend.classid, depend.objid, depend.objsubid, live.relname
    FROM live
    JOIN pg_depend depend
      ON depend.deptype IN ('n', 'a')
     AND ((depend.refclassid = 'pg_class'::regclass AND depend.refobjid = live.oid)
          OR (depend.refclassid = 'pg_type'::regclass AND depend.refobjid = live.reltype))
    WHERE depend.classid <> 'pg_attrdef'::regclass
)
SELECT CASE WHEN view.ev_class IS NULL THEN pg_describe_object(classid, objid, objsubid)
            ELSE pg_describe_object('pg_class'::regclass, view.ev_class, 0) END AS description
FROM dependent
LEFT JOIN pg_rewrite view
       ON classid = 'pg_rewrite'::regclass AND view.oid = objid AND view.ev_class NOT IN (SELECT oid FROM live)
WHERE NOT CASE classid
    WHEN 'pg_class'::regclass THEN EXISTS (
        SELECT FROM pg_class
        WHERE oid = objid AND (relispartition OR relname IN (
            'scheduled_tasks_due', 'scheduled_tasks_held',
            replace(dependent.relname, 'scheduled_tasks_live', 'scheduled_tasks_key'))))
    WHEN 'pg_constraint'::regclass THEN EXISTS (
        SELECT FROM pg_constraint
        WHERE oid = objid AND (contype = 'n' OR coninhcount > 0 OR conparentid <> 0 OR (
            contype = 'p' AND conname = dependent.relname || '_pkey')))
    WHEN 'pg_trigger'::regclass THEN EXISTS (
        SELECT FROM pg_trigger WHERE oid = objid AND (tgisinternal OR tgparentid <> 0))
    ELSE false
END
UNION
SELECT 'row level security on table ' || relname FROM live WHERE relrowsecurity
UNION
SELECT format('storage parameter %s of table %s', parameter, relname)
FROM live, unnest(reloptions) AS parameter
WHERE parameter NOT IN (
    'fillfactor=70', 'autovacuum_vacuum_scale_factor=0.02', 'autovacuum_vacuum_insert_scale_factor=0.2')
ORDER BY description
