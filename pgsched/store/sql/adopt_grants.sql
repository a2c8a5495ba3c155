-- The statements that give the new tables the rights that were granted on the adopted one. Rights on the parent are
-- enough for statements that name the parent; the partitions get the same, for supervisors that run as another role.
-- Whoever may delete may drop whole ranges. Whoever may insert needs the sequence, which an identity column did not ask
-- for. Catalogue only.
WITH granted AS (
    SELECT acl.grantee, acl.privilege_type, acl.is_grantable, NULL::name AS column_name
    FROM pg_class tasks, aclexplode(tasks.relacl) acl
    WHERE tasks.oid = 'pgsched_adopted'::regclass AND acl.grantee <> tasks.relowner
    UNION ALL
    SELECT acl.grantee, acl.privilege_type, acl.is_grantable, attname
    FROM pg_class tasks JOIN pg_attribute ON attrelid = tasks.oid AND attnum > 0, aclexplode(attacl) acl
    WHERE tasks.oid = 'pgsched_adopted'::regclass AND acl.grantee <> tasks.relowner
),
receiver AS (
    SELECT *, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS role FROM granted
)
SELECT format('GRANT %s%s ON %I TO %s%s', privilege_type, '(' || quote_ident(column_name) || ')', target, role,
              CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END)
FROM receiver, unnest(ARRAY['scheduled_tasks', 'scheduled_tasks_live', 'scheduled_tasks_ended']) target
UNION ALL
SELECT DISTINCT format('GRANT EXECUTE ON FUNCTION pgsched_make_range, pgsched_drop_range TO %s', role)
FROM receiver WHERE privilege_type = 'DELETE'
UNION ALL
SELECT DISTINCT format('GRANT USAGE ON SEQUENCE scheduled_tasks_id_seq TO %s', role)
FROM receiver WHERE privilege_type = 'INSERT'
