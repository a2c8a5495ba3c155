"""The process side: forkserver, workers, slots, limits and the wire between them.

Whatever needs a process table, a signal or a pipe is here, and nothing that knows a database. ``pool.py`` is the
supervisor's door; ``forkserver.py`` and ``worker.py`` are what the other processes run.
"""
