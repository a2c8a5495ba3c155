-- The planner knows nothing of rows that came all at once.
ANALYZE scheduled_tasks
