"""Which database is meant: the one order in which commands, Apps and workers look for it.

Decides only; what a connection string may contain is libpq's business, and starting the embedded server is the
caller's, handed in as a function. Pure.
"""

from collections.abc import Callable, Mapping

from pgsched.errors import UsageError

VARIABLE = "PGSCHED_DSN"
PASSWORD_COMMAND = "PGSCHED_PASSWORD_COMMAND"
PASSWORD_FROM = "PGSCHED_PASSWORD_FROM"
"""What makes the passwords for it; see ``store.passwords``."""
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE")
"""One of these says that libpq's environment describes a database. ``PGUSER`` or ``PGPASSWORD`` alone do not."""


def resolve(
    explicit: str | None,
    environ: Mapping[str, str],
    embedded: Callable[[], str] | None,
    *,
    option: str = "--dsn",
) -> str:
    """Find the connection string: the explicit one, ``PGSCHED_DSN``, libpq's own environment, the embedded server.

    :param embedded: returns the embedded server's DSN, and starts it if need be; None forbids it.
    :param option: what messages call the explicit one.
    :return: for psycopg; empty where libpq's environment says everything.
    :raises UsageError: one that was given is empty, or there is none.
    """
    for name, value in ((option, explicit), (VARIABLE, environ.get(VARIABLE))):
        if value is None:
            continue
        if not value.strip():
            raise UsageError(f"{name} is empty: give a connection string, or leave it out")
        return value
    if any(environ.get(variable) for variable in LIBPQ_VARIABLES):
        return ""
    if embedded is None or PASSWORD_COMMAND in environ or PASSWORD_FROM in environ:
        # The embedded server asks for no password: one that is to be made is for a database whose name was lost.
        raise UsageError(f"no database: give {option}, or set {VARIABLE} or libpq's variables (PGHOST, PGSERVICE, ...)")
    return embedded()
