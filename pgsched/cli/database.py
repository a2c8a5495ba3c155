"""Which database a command works on: ``--dsn``, ``PGSCHED_DSN``, libpq's own environment, else the embedded server.

A command asks for ``database_options`` and gets one :class:`Database`. Nothing is looked up or started before
``open`` is called, so wrong options are refused first. The schema of the embedded server is ours, so it is brought
up to date without asking; any other database is migrated only by ``pgsched migrate``.
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgsched.cli.guard import say
from pgsched.cli.options import all_of, given_as, option, setting
from pgsched.dsn import PASSWORD_COMMAND, PASSWORD_FROM, resolve

if TYPE_CHECKING:
    from psycopg import Connection

F = TypeVar("F", bound=Callable[..., Any])


class Database:
    """What the options say about the database.

    :param dsn: as given, by option or variable.
    :param embedded: whether the embedded server may be used.
    :param timeout: seconds that any call may take.
    :param shown: how messages call the DSN.
    """

    def __init__(self, dsn: str | None, *, embedded: bool, timeout: float, shown: str = "--dsn") -> None:
        self._dsn = dsn
        self._found: str | None = None
        self._embedded = embedded
        self._shown = shown
        self.timeout = timeout

    @property
    def given(self) -> bool:
        """Whether a DSN was given, by option or variable."""
        return self._dsn is not None

    def open(self, *, migrate: bool = True) -> str:
        """Find the database and return its DSN; the embedded server runs at least until the command's end.

        :param migrate: bring the embedded server's schema up to date.
        :raises UsageError: there is none.
        :raises DatabaseError: the embedded server does not start.
        """
        if self._found is None:
            embedded = functools.partial(_start_embedded, migrate=migrate) if self._embedded else None
            self._found = resolve(self._dsn, os.environ, embedded, option=self._shown)
        return self._found

    def connect(self, command: str) -> "Connection[Any]":
        """Connect for one command, and demand a schema that fits.

        :raises UsageError, DatabaseError, SchemaError: it cannot be done.
        """
        from pgsched.store import schema
        from pgsched.store.bounded import BoundedConnection
        from pgsched.store.connection import connect_sync

        dsn, name = self.open(), f"pgsched {command}"
        connection = connect_sync(dsn, timeout=self.timeout, application_name=name, kind=BoundedConnection)
        try:
            assert isinstance(connection, BoundedConnection)
            connection.deadline = self.timeout
            schema.require(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _start_embedded(*, migrate: bool) -> str:
    from pgsched.ops import embedded
    from pgsched.store import schema

    handle = embedded.start()
    click.get_current_context().call_on_close(handle.close)
    say(f"using the embedded server in {handle.directory}")
    if migrate:
        schema.migrate(handle.dsn)
    return handle.dsn


def database_options(function: F) -> F:
    """Add ``--dsn``, what makes its passwords, ``--no-embedded`` and ``--db-timeout``; the function gets them as
    ``database``.
    """

    @functools.wraps(function)
    def with_database(
        *args: Any,
        dsn: str | None,
        password_command: str | None,
        password_from: str | None,
        no_embedded: bool,
        db_timeout: float,
        **kwargs: Any,
    ) -> Any:
        context = click.get_current_context()
        shown = next(given_as(context, param) for param in context.command.params if param.name == "dsn")
        _say_to_all(context, {PASSWORD_COMMAND: password_command, PASSWORD_FROM: password_from})
        database = Database(dsn, embedded=not no_embedded, timeout=db_timeout, shown=shown)
        return function(*args, database=database, **kwargs)

    return _options(with_database)  # type: ignore[return-value]


def _say_to_all(context: click.Context, variables: Mapping[str, str | None]) -> None:
    """Set variables as if they had been set for this command: its workers, and every connection, go by them.

    :raises UsageError: they make no sense.
    """
    from pgsched.store.passwords import passwords

    for name, value in variables.items():
        if value is not None and os.environ.get(name) != value:
            context.call_on_close(functools.partial(_put_back, name, os.environ.get(name)))
            os.environ[name] = value
    passwords()


def _put_back(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


_options = all_of(
    option(
        "--dsn",
        metavar="DSN",
        help="The database: postgresql://... or key=value.  [default: libpq's environment (PGHOST, PGSERVICE, ...), "
        "else the embedded server]",
    ),
    option(
        "--password-command",
        metavar="COMMAND",
        help="A program that prints the password, run without a shell for each new connection.",
    ),
    option(
        "--password-from",
        metavar="MODULE:FUNCTION",
        help="A function that returns the password, called in a process of its own for each new connection.",
    ),
    option("--no-embedded", is_flag=True, help="Never use the embedded server."),
    setting("db_timeout", "SECONDS", "Deadline of every database call.", checked=True),
)
