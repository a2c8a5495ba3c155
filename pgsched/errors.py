"""Errors that a user can meet, each with the exit code it ends a command with.

Every message is one line that names the thing, its value and what would be right. The command line
prints it and exits; library callers catch :class:`PgschedError` or a subclass.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every ``pgsched`` command (documented in docs/reference/exit-codes.md)."""

    OK = 0
    INCOMPLETE = 1
    """The command ran, but its answer is "no": demo with N != M, check with problems, ID not found."""
    USAGE = 2
    """A wrong option, payload or setting; nothing was done."""
    DATABASE = 3
    """The database cannot be reached, refuses the login, or lacks rights."""
    SCHEMA = 4
    """The schema is missing, older or newer than this version; run ``pgsched migrate``."""
    APP = 5
    """APP cannot be imported or names no App."""
    POOL = 6
    """The pool cannot boot its workers."""
    FORCED = 7
    """A second signal cut the drain short; the running tasks were given back."""
    RESOURCE = 8
    """Something that the service needs of this machine is not there now: a port, an address, room for the metrics."""


class PgschedError(Exception):
    """Base of all errors that are meant for a user's eyes."""

    exit_code = ExitCode.INCOMPLETE
    details: str = ""
    """More than one line, where there is more: the traceback of a user's module that cannot be imported."""


class UsageError(PgschedError):
    """An option, setting, payload or argument is wrong."""

    exit_code = ExitCode.USAGE


class DatabaseError(PgschedError):
    """The database could not be reached, or refused us."""

    exit_code = ExitCode.DATABASE


class DeadlineError(DatabaseError):
    """A database call did not answer within ``--db-timeout``, or the server gave it up at a limit of its own."""


class LockedError(DatabaseError):
    """Somebody holds a lock for longer than the call may wait for it; nothing was done."""


class SchemaError(PgschedError):
    """The schema is missing or of another version."""

    exit_code = ExitCode.SCHEMA


class AppError(PgschedError):
    """APP cannot be imported, or what it names is not an App."""

    exit_code = ExitCode.APP


class PoolError(PgschedError):
    """The pool cannot boot its workers, or they die as fast as they are started."""

    exit_code = ExitCode.POOL


class ResourceError(PgschedError):
    """This machine does not have now what the service needs; it may have it later."""

    exit_code = ExitCode.RESOURCE
