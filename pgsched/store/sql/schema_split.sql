-- Splits the live tasks into partitions, or brings them together in one table. $1: how many. Returns how many rows moved.
SELECT pgsched_split($1::integer)
