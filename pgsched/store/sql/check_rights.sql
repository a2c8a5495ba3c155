-- The rights that the current role lacks, one row a table or sequence. Catalogue only; no rights needed. Locks: none.
-- FOR UPDATE asks for the right to UPDATE.
SELECT need.relation, string_agg(need.privilege, ', ' ORDER BY need.turn) AS privileges, need.kind
FROM (
    SELECT relation, privilege, turn, '' AS kind
    FROM (VALUES ('scheduled_tasks', ARRAY['SELECT', 'INSERT', 'UPDATE']),
                 ('scheduled_tasks_live', ARRAY['SELECT', 'UPDATE', 'DELETE']),
                 ('scheduled_tasks_ended', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
                 ('pgsched_supervisors', ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']),
                 ('pgsched_failures', ARRAY['SELECT', 'INSERT', 'DELETE']),
                 ('pgsched_schema', ARRAY['SELECT'])) AS tables (relation, privileges),
         unnest(privileges) WITH ORDINALITY AS each (privilege, turn)
    WHERE to_regclass(relation) IS NOT NULL
      AND NOT has_table_privilege(to_regclass(relation)::oid, privilege)
    UNION ALL
    SELECT 'pgsched_' || name, 'EXECUTE', 1, 'FUNCTION '
    FROM (VALUES ('make_range(interval, interval)'), ('drop_range(interval)')) AS functions (name)
    WHERE to_regprocedure('pgsched_' || name) IS NOT NULL
      AND NOT has_function_privilege(to_regprocedure('pgsched_' || name)::oid, 'EXECUTE')
    UNION ALL
    SELECT 'scheduled_tasks_id_seq', 'USAGE', 1, 'SEQUENCE '
    WHERE to_regclass('scheduled_tasks_id_seq') IS NOT NULL
      AND NOT has_sequence_privilege(to_regclass('scheduled_tasks_id_seq')::oid, 'USAGE')
) AS need
GROUP BY need.relation, need.kind
ORDER BY need.relation
