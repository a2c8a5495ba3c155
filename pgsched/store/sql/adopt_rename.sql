-- Makes room for the new table.
ALTER TABLE scheduled_tasks RENAME TO pgsched_adopted
