-- Remembers that a migration was applied. $1: its version.
INSERT INTO pgsched_schema (version) VALUES ($1::integer)
