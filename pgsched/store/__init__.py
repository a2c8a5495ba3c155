"""Everything SQL: one statement a file in ``sql/``, the schema in ``migrations/``. The only importer of psycopg.

``store`` is for the supervisor, asynchronous and with a deadline for every call; ``schema``, ``enqueue``, ``admin`` and
``check`` are for commands and producers. It knows nothing of processes, and decides nothing that ``rules`` can decide.
"""
