-- The last value of the sequence that the adopted table's id counts with (NULL: never used), and the statements that
-- make it ours under the name that the migration expects. An identity's sequence cannot be taken out of its column; it
-- goes, and its last value is carried on. Catalogue only.
SELECT pg_sequence_last_value(sequence.oid) AS last_value,
       CASE WHEN depend.deptype = 'i' THEN 'ALTER TABLE scheduled_tasks ALTER COLUMN id DROP IDENTITY'
            ELSE format('ALTER SEQUENCE %1$I OWNED BY NONE; ALTER SEQUENCE %1$I OWNER TO CURRENT_USER', sequence.relname)
              || CASE WHEN sequence.relname <> 'scheduled_tasks_id_seq' THEN
                     format('; ALTER SEQUENCE %I RENAME TO scheduled_tasks_id_seq', sequence.relname) ELSE '' END
       END AS release
FROM pg_attribute id
JOIN pg_depend depend
  ON depend.classid = 'pg_class'::regclass AND depend.refclassid = 'pg_class'::regclass
 AND depend.refobjid = id.attrelid AND depend.refobjsubid = id.attnum AND depend.deptype IN ('a', 'i')
JOIN pg_class sequence ON sequence.oid = depend.objid AND sequence.relkind = 'S'
WHERE id.attrelid = 'scheduled_tasks'::regclass AND id.attname = 'id'
