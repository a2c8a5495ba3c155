-- What is wrong with the schema that the tables are in: who else may create in it, whether their owner, who makes the
-- ranges, may not, and which functions still look for it under another name. Catalogue only. Locks: none.
WITH home AS (
    SELECT pg_namespace.oid, nspname, nspacl, nspowner, relowner
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass('scheduled_tasks')
)
SELECT 'creator' AS kind, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS name,
       quote_ident(nspname) AS schema
FROM home, aclexplode(nspacl)
WHERE privilege_type = 'CREATE' AND grantee NOT IN (nspowner, relowner)
UNION ALL
SELECT 'owner', quote_ident(pg_get_userbyid(relowner)), quote_ident(nspname)
FROM home
WHERE NOT has_schema_privilege(relowner, oid, 'CREATE')
UNION ALL
SELECT 'function', pg_proc.oid::regprocedure::text, quote_ident(nspname)
FROM home JOIN pg_proc ON pronamespace = home.oid, unnest(proconfig) AS setting
WHERE proname LIKE 'pgsched\_%' AND setting LIKE 'search\_path=%'
  AND setting NOT IN (format('search_path=%s, pg_temp', quote_ident(nspname)), format('search_path=%s, pg_temp', nspname))
ORDER BY 1, 2
