"""Connections, and the deadline of every call on them.

psycopg cancels politely: it asks the server to stop and waits for its consent. A silent server never consents, so
a call that is late here has its socket shut down instead, and the connection is thrown away. Whether the server
still did what it was asked is then not known. Runs in the supervisor's loop, and in commands.
"""

import asyncio
import contextlib
import math
import os
import socket
import threading
import traceback
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgsched.errors import DatabaseError, DeadlineError, UsageError
from pgsched.store.passwords import Asked, Passwords, passwords
from pgsched.store.redaction import one_line, redact, remember

PREPARE_AFTER: Final = 5
"""Uses of a statement on one connection."""
T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

_MIN_CONNECT_TIMEOUT: Final = 2
"""Seconds; libpq takes anything less for that."""
_LAST_WORDS: Final = 1.0
"""Seconds that a call gets to end after its socket is gone, which takes it milliseconds."""


async def connect(dsn: str, *, timeout: float, pooled: bool = False, application_name: str = "pgsched") -> Connection:
    """Open a connection that commits each statement by itself, to a server that can be written to.

    :param dsn: for libpq; "" leaves all to its environment.
    :param timeout: seconds; for each host, when the DSN names several.
    :param pooled: the server may be a transaction pooler: prepare nothing.
    :raises UsageError: the DSN is malformed.
    :raises DatabaseError: one line that names host, port, database and user, and no password.
    """
    parameters = _parameters(dsn, timeout, application_name, writable=True)
    source = _source(parameters)
    prepare = None if pooled else PREPARE_AFTER
    while True:
        asked = None if source is None else await _asked(source, timeout)
        try:
            # Each host has its own timeout; the sum bounds what it does not cover, such as the name's resolution.
            async with asyncio.timeout(timeout * (1 + str(parameters.get("host") or "").count(","))):
                try:
                    return await psycopg.AsyncConnection.connect(
                        **_with(parameters, asked), autocommit=True, prepare_threshold=prepare
                    )
                except BaseException as error:
                    # What was begun is held by the driver's frames alone, and they by the error, which whoever passes
                    # it on may tie into a circle. The socket would be open until the collector comes, which it seldom
                    # does.
                    traceback.clear_frames(error.__traceback__)
                    raise
        except TimeoutError:
            # Not a deadline's error, which tells of a server that is there and was slow.
            raise DatabaseError(f"no answer from {_place(parameters)} within {timeout:g} s") from None
        except (psycopg.Error, OSError, UnicodeError) as error:
            if not _may_ask_again(source, asked, error):
                raise _refused(parameters, error) from None


def connect_sync(
    dsn: str,
    *,
    timeout: float = 10.0,
    application_name: str = "pgsched",
    kind: type[psycopg.Connection[Any]] = psycopg.Connection,
    source: Passwords | None = None,
    writable: bool = False,
) -> psycopg.Connection[Any]:
    """The same for a command, or a program that enqueues; it prepares nothing, for nobody has said what it leads to.

    :param kind: the class of the connection.
    :param source: of passwords; default what the environment says, unless the DSN has one.
    :param writable: no other server will do; where the DSN names several, none does anyway.
    """
    parameters = _parameters(dsn, timeout, application_name, writable)
    source = source or _source(parameters)
    while True:
        asked = None if source is None else source.get(timeout)
        try:
            return kind.connect(**_with(parameters, asked), autocommit=True, prepare_threshold=None)
        except (psycopg.Error, OSError, UnicodeError) as error:
            if not _may_ask_again(source, asked, error):
                raise _refused(parameters, error) from None


def _source(parameters: dict[str, Any]) -> Passwords | None:
    return None if parameters.get("password") else passwords()


async def _asked(source: Passwords, timeout: float) -> Asked:
    """Ask in a thread, because it takes its time; whoever is cancelled does not leave it behind."""
    try:
        return await asyncio.to_thread(source.get, timeout)
    except asyncio.CancelledError:
        source.give_up()
        raise


def _with(parameters: dict[str, Any], asked: Asked | None) -> dict[str, Any]:
    return parameters if asked is None else {**parameters, "password": asked.text}


def _may_ask_again(source: Passwords | None, asked: Asked | None, error: BaseException) -> bool:
    """Whether the password may be why the server refused, and another one is worth a try at once."""
    if source is None or asked is None or not isinstance(error, psycopg.Error):
        return False
    # A server that is away, or wants none, says nothing about the password.
    return error.pgconn is not None and error.pgconn.used_password and source.refused(asked)


async def deadline(connection: Connection, call: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run a call on a connection; late or cancelled, cut the connection and end at once.

    :raises DeadlineError: no answer within so many seconds; what the server did is not known.
    """
    task = asyncio.ensure_future(call)
    # It may fail in the very moment in which we are cancelled, and then nobody asks what became of it.
    task.add_done_callback(_forget)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        # Late, or we are cancelled ourselves: it must end here and now.
        late = not task.done()
        if late:
            cut(connection)
            await asyncio.wait({task}, timeout=_LAST_WORDS)
    if late:
        raise DeadlineError(f"no answer from the database within {seconds:g} s")
    return task.result()


def _forget(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


def cut(connection: Connection | psycopg.Connection[Any]) -> None:
    """Shut the connection's socket down: whoever waits on it gets an error now."""
    try:
        handle = socket.socket(fileno=os.dup(connection.pgconn.socket))
    except (psycopg.Error, OSError):
        return
    with handle:
        try:
            handle.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


@contextlib.contextmanager
def cut_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[threading.Event]:
    """Cut the connection if the block takes longer, from a thread; what it gets tells whether that has happened."""
    late = threading.Event()

    def end() -> None:
        late.set()
        cut(connection)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def turned_read_only(connection: Connection) -> bool:
    """Whether the server has said so since; it does of its own accord, but a pooler may keep it to itself."""
    if connection.closed:
        return False
    status = connection.pgconn.parameter_status
    return b"on" in (status(b"default_transaction_read_only"), status(b"in_hot_standby"))


def _not_understood(said: str) -> str:
    """What libpq's parser says of a DSN, without what it quotes, which may well be the password."""
    import difflib

    reason, _, quoted = said.partition('"')
    match reason.strip():
        case "missing":
            return "a word without ="
        case "invalid connection option":
            known = [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]
            near = difflib.get_close_matches(quoted.partition('"')[0], known, n=1)
            return f"an option that libpq does not have; {near[0]}?" if near else "an option that libpq does not have"
        case other:
            return other


def _parameters(dsn: str, timeout: float, application_name: str, writable: bool = False) -> dict[str, Any]:
    if "\0" in dsn:
        # libpq would take what stands before it for the whole.
        raise UsageError("malformed DSN (it contains a NUL character): must be postgresql://... or key=value pairs")
    try:
        parameters = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError) as error:
        reason = _not_understood(one_line(error))
        raise UsageError(f"malformed DSN ({reason}): must be postgresql://... or key=value pairs") from None
    shown = {parameters.get(key) for key in ("user", "dbname", "host")}
    for key in ("password", "sslpassword"):
        secret = parameters.get(key)
        # A password that is also the user's name could be hidden only together with that.
        if isinstance(secret, str) and secret not in shown:
            remember(secret)
    parameters.setdefault("application_name", application_name)
    # The server may have been told SQL_ASCII or anything else: text is UTF-8 here.
    parameters["client_encoding"] = "utf8"
    parameters.setdefault("connect_timeout", max(_MIN_CONNECT_TIMEOUT, math.ceil(timeout)))
    # A peer that vanished without a word must not keep a connection, or one that waits for its answer, for hours.
    parameters.setdefault("tcp_user_timeout", round(timeout * 1000))
    parameters.setdefault("keepalives_idle", math.ceil(timeout))
    parameters.setdefault("keepalives_interval", math.ceil(timeout / 3))
    parameters.setdefault("keepalives_count", 3)
    if (writable or "," in str(parameters.get("host"))) and not os.environ.get("PGTARGETSESSIONATTRS"):
        # After a failover a name may lead to the old server for a while, which answers questions with what was.
        parameters.setdefault("target_session_attrs", "read-write")
    return dict(parameters)


def _place(parameters: dict[str, Any]) -> str:
    def value(key: str, variable: str, default: str) -> str:
        return str(parameters.get(key) or os.environ.get(variable) or default)

    host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port, database, user = (
        value("port", "PGPORT", "5432"),
        value("dbname", "PGDATABASE", "-"),
        value("user", "PGUSER", "-"),
    )
    return redact(f"{host} port {port} (database {database}, user {user})")


def _refused(parameters: dict[str, Any], error: BaseException) -> DatabaseError:
    reason = one_line(error)
    if "certificate verify failed" in reason:
        # The driver does not say what to do, and services such as RDS have a CA of their own.
        reason += "; sslrootcert in the DSN must name the file of the CA that signed the server's certificate"
    return DatabaseError(f"cannot connect to {_place(parameters)}: {reason}")
