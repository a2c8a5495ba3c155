-- Lets the sequence go on after the last value it gave out, or after the highest id if somebody went past it by hand.
-- $1: that last value; NULL: there is none.
SELECT setval('scheduled_tasks_id_seq', greatest(max(id), $1::bigint))
FROM scheduled_tasks
HAVING greatest(max(id), $1::bigint) >= 1
