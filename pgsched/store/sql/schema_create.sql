-- The table that remembers which migrations were applied. Created with the first of them.
CREATE TABLE pgsched_schema (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)
