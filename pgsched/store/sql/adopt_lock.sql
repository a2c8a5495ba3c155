-- Keeps everybody away from the table until its rows are in the new one.
LOCK TABLE scheduled_tasks IN ACCESS EXCLUSIVE MODE
