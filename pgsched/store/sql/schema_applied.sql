-- Remembers that a migration was applied.
INSERT INTO pgsched_schema (version) VALUES (%(version)s)
