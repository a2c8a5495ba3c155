-- How many processes somebody wants a supervisor to have (`pgsched scale`); NULL when it has taken the number.
ALTER TABLE pgsched_supervisors ADD COLUMN wanted_processes integer CHECK (wanted_processes BETWEEN 1 AND 1024);
