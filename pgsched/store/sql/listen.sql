-- Subscribe to hints: rows were queued, or tasks cancelled. Index: none. Locks: none.
LISTEN pgsched
