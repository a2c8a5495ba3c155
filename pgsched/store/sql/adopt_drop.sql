-- The old table has been copied. RESTRICT: what still hangs on it stops the migration and is named by the server.
DROP TABLE pgsched_adopted RESTRICT
