-- Lets the sequence go on after the last value it gave out, or after the highest id if somebody went past it by hand.
SELECT setval('scheduled_tasks_id_seq', greatest(max(id), %(last_value)s::bigint))
FROM scheduled_tasks
HAVING greatest(max(id), %(last_value)s::bigint) >= 1
