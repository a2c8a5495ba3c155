-- What hangs on the table that is to be adopted, and would be lost with it: views, foreign keys, triggers, rules,
-- policies, publications, functions with its row type, constraints and unique indexes that the article does not make,
-- parents. Its primary key on id, NOT NULL, defaults, sequence, toast table and plain indexes are no obstacles.
-- Catalogue only.
WITH tasks AS (
    SELECT oid, reltype, relrowsecurity FROM pg_class WHERE oid = 'scheduled_tasks'::regclass
),
dependent AS (
    SELECT depend.classid, depend.objid, depend.objsubid
    FROM tasks
    JOIN pg_depend depend
      ON (depend.refclassid = 'pg_class'::regclass AND depend.refobjid = tasks.oid)
      OR (depend.refclassid = 'pg_type'::regclass AND depend.refobjid = tasks.reltype)
    WHERE depend.classid NOT IN ('pg_type'::regclass, 'pg_attrdef'::regclass)
      AND NOT (depend.classid = 'pg_constraint'::regclass AND EXISTS (
          SELECT FROM pg_constraint k
          JOIN pg_attribute id ON id.attrelid = tasks.oid AND id.attname = 'id'
          WHERE k.oid = depend.objid AND k.conrelid = tasks.oid
            AND (k.contype = 'n' OR (k.contype = 'p' AND k.conkey = ARRAY[id.attnum]))))
      AND NOT (depend.classid = 'pg_trigger'::regclass AND EXISTS (
          SELECT FROM pg_trigger t WHERE t.oid = depend.objid AND t.tgisinternal))
      AND NOT (depend.classid = 'pg_class'::regclass AND EXISTS (
          SELECT FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
          WHERE c.oid = depend.objid AND (c.relkind IN ('S', 't') OR (c.relkind = 'i' AND NOT i.indisunique))))
)
SELECT CASE WHEN view.ev_class IS NULL THEN pg_describe_object(classid, objid, objsubid)
            ELSE pg_describe_object('pg_class'::regclass, view.ev_class, 0) END AS description
FROM dependent
LEFT JOIN pg_rewrite view
       ON dependent.classid = 'pg_rewrite'::regclass AND view.oid = dependent.objid
      AND view.ev_class <> (SELECT oid FROM tasks)
UNION
SELECT 'inheritance from table ' || inhparent::regclass FROM pg_inherits, tasks WHERE inhrelid = tasks.oid
UNION
SELECT 'row level security' FROM tasks WHERE relrowsecurity
ORDER BY description
