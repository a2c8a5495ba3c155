"""The ``pgsched`` command: the only place that imports click, and the only one where parts are put together.

``main`` is the entry point, ``guard`` turns every error into one line and an exit code, ``options`` holds what
the commands share, ``output`` formats, ``compose`` builds a supervisor from its parts. The other modules hold
the commands.
"""
