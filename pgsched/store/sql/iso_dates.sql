-- For the rest of the transaction, have times written in the one form that the driver reads; a role or a database may
-- have another DateStyle. Index: none. Locks: none.
SELECT set_config('DateStyle', 'ISO', true)
