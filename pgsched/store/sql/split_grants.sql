-- The statements that give back the rights which somebody has granted on single partitions of the live tasks, each with
-- the partition's number: those tables are made anew. What was granted on the whole comes back without it. Catalogue only.
WITH part AS (
    SELECT oid, relname, relowner, relacl, substring(relname FROM '[0-9]+$')::integer AS number
    FROM pg_partition_tree('scheduled_tasks_live') JOIN pg_class ON oid = relid
    WHERE level > 0
),
granted AS (
    SELECT number, relname, acl.grantee, acl.privilege_type, acl.is_grantable, NULL::name AS column_name
    FROM part, aclexplode(relacl) AS acl
    WHERE acl.grantee <> relowner
    UNION ALL
    SELECT number, relname, acl.grantee, acl.privilege_type, acl.is_grantable, attname
    FROM part JOIN pg_attribute ON attrelid = part.oid AND attnum > 0, aclexplode(attacl) AS acl
    WHERE acl.grantee <> relowner
)
SELECT number, format('GRANT %s%s ON %I TO %s%s', privilege_type, '(' || quote_ident(column_name) || ')', relname,
                      CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
                      CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END)
FROM granted
ORDER BY number
