"""What is wrong with the server, the rights, the tables and the settings, each in a plain line with its cure.

Reads the catalogue and the statistics, needs no superuser, changes nothing and prints nothing. Runs in the command
line.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

import psycopg

from pgsched.errors import SchemaError
from pgsched.rules.demand import LIMITS
from pgsched.store import schema
from pgsched.store.bounded import BoundedConnection
from pgsched.store.connection import connect_sync
from pgsched.store.pooler import is_pooled
from pgsched.store.refusals import refusals
from pgsched.store.statements import rows

OLDEST_SERVER: Final = 15
CLAIM_LOCKS: Final = LIMITS.batch
"""Advisory locks that one claim may hold: one a task."""
CLAIMS_AT_ONCE: Final = 4
"""Supervisors that should be able to claim in the same moment."""
OLD_SECONDS: Final = 300.0
OLD_TRANSACTIONS: Final = 1_000_000
CLOCK_DIFFERENCE: Final = 2.0
"""Seconds."""
DEAD_ROWS: Final = 200_000
DEAD_TIMES: Final = 2.0
"""Dead rows of a live table, in all and for each living one: a queue of many tiny tasks has half of it at times."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be."""

    level: Literal["error", "warning", "note"]
    """error: pgsched does not work; warning: it works badly, or will; note: it works otherwise than you may think."""
    text: str
    """One line."""
    cure: str
    """What to do about it; one line."""


class _Server(NamedTuple):
    """The row of ``check_server.sql``."""

    version_number: int
    version: str
    standby: bool
    read_only: bool
    encoding: str
    database: str
    role: str
    fsync: bool
    synchronous_commit: str
    autovacuum: bool
    locks: int
    isolation: str
    standbys: int
    synchronous: int
    clock: Decimal
    """Seconds since the epoch; a float would be rounded as the role has it."""


def check(dsn: str, timeout: float = 10.0) -> list[Problem]:
    """Connect, and look at everything; errors come first.

    :param timeout: seconds to connect, and for each look: somebody may hold a lock that one of them waits for.
    :raises DatabaseError: the server cannot be reached, or does not answer.
    """
    with connect_sync(dsn, timeout=timeout, application_name="pgsched check", kind=BoundedConnection) as conn:
        assert isinstance(conn, BoundedConnection)
        conn.deadline = timeout
        return problems(conn)


def problems(conn: psycopg.Connection[Any]) -> list[Problem]:
    """The same over a connection in autocommit mode.

    :raises DatabaseError: it is lost.
    """
    with refusals("cannot check the database"):
        begun = time.time()
        server = _Server(*rows(conn, "check_server")[0])
        ended = time.time()
        found = [*_of_server(server), *_of_durability(server), *_of_clocks(float(server.clock), begun, ended)]
        found += _of_encryption(conn)
        if is_pooled(conn):
            found += _of_pooler(server)
        found += _of_schema(conn, server.role)
        found += _of_snapshots(conn)
    order = ("error", "warning", "note")
    return sorted(found, key=lambda problem: order.index(problem.level))


def _of_server(server: _Server) -> Iterator[Problem]:
    if server.version_number < OLDEST_SERVER * 10000:
        yield Problem("error", f"the server is PostgreSQL {server.version}", f"upgrade it to {OLDEST_SERVER} or later")
    if server.standby:
        yield Problem("error", "the server is a standby, which takes no writes", "connect to the primary")
    elif server.read_only:
        yield Problem(
            "error",
            f"transactions of role {server.role} in database {server.database} are read-only",
            "set default_transaction_read_only to off",
        )
    if server.encoding != "UTF8":
        yield Problem(
            "warning",
            f"database {server.database} has encoding {server.encoding}, which "
            + ("checks no text" if server.encoding == "SQL_ASCII" else "cannot store every character"),
            "use a database with encoding UTF8",
        )
    if server.locks < CLAIM_LOCKS * CLAIMS_AT_ONCE:
        yield Problem(
            "warning",
            f"the server has room for about {server.locks:,} locks, and one claim may take {CLAIM_LOCKS:,}",
            "raise max_locks_per_transaction",
        )
    if not server.autovacuum:
        yield Problem(
            "warning",
            "autovacuum is off on the server: dead rows will pile up and claims become slow",
            "set autovacuum and track_counts to on",
        )


def _of_durability(server: _Server) -> Iterator[Problem]:
    if not server.fsync:
        yield Problem("warning", "fsync is off: a crash of the machine may destroy the database", "set fsync to on")
    if server.synchronous_commit == "off":
        yield Problem(
            "note",
            "synchronous_commit is off: after a crash of the server the last tasks may be lost or run again",
            "set synchronous_commit to on unless that is acceptable",
        )
    elif server.standbys and not server.synchronous:
        yield Problem(
            "note",
            "no standby is synchronous: after a failover to one the last tasks may be lost or run again",
            "set synchronous_standby_names unless that is acceptable",
        )
    elif server.standbys and server.synchronous_commit == "local":
        yield Problem(
            "note",
            "synchronous_commit is local: after a failover to a standby the last tasks may be lost or run again",
            "set synchronous_commit to on unless that is acceptable",
        )


def _of_encryption(conn: psycopg.Connection[Any]) -> Iterator[Problem]:
    """Of the way to a host that has another name than this one."""
    host = conn.info.host
    if host in ("", "localhost", "::1") or host.startswith(("/", "@", "127.")):
        return
    modes = [option.val for option in conn.pgconn.info if option.keyword == b"sslmode"]
    if not conn.pgconn.ssl_in_use:
        text = "is not encrypted: who is on the way can read and change all tasks, and take the password"
    elif modes != [b"verify-full"]:
        text = "is encrypted, but nobody looks whether it leads to the right server"
    else:
        return
    cure = "put sslmode=verify-full into the DSN, and sslrootcert with the file of the CA that signed its certificate"
    yield Problem("warning", f"the connection to {host} {text}", cure)


def _of_clocks(database: float, begun: float, ended: float) -> Iterator[Problem]:
    """The database's clock was read somewhere between the two readings of ours."""
    ahead = begun - database if begun > database else min(0.0, ended - database)
    if abs(ahead) > CLOCK_DIFFERENCE:
        yield Problem(
            "warning",
            f"this host's clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the database's, "
            "which decides when a task is due",
            "synchronise both clocks",
        )


def _of_pooler(server: _Server) -> Iterator[Problem]:
    yield Problem(
        "note",
        "there is a connection pooler between this host and the server",
        "if it pools transactions, give `pgsched run` --pooled",
    )
    if server.isolation not in ("read committed", "read uncommitted"):
        # Who has a session of his own sets this for it; see session.sql.
        yield Problem(
            "warning",
            f"transactions of role {server.role} in database {server.database} are {server.isolation}: "
            "with --pooled, claims fail where they should skip",
            "set default_transaction_isolation to read committed",
        )


def _of_schema(conn: psycopg.Connection[Any], role: str) -> Iterator[Problem]:
    lacking = rows(conn, "check_rights")
    for relation, privileges, kind in lacking:
        yield Problem(
            "error",
            f"role {role} lacks the right to {privileges} on {kind.lower()}{relation}",
            f"GRANT {privileges} ON {kind}{relation} TO {_quoted(conn, role)}",
        )
    if any(relation == "pgsched_schema" for relation, _, _ in lacking):
        return
    try:
        schema.require(conn)
    except SchemaError as error:
        text, _, cure = str(error).rpartition(": ")
        yield Problem("error", text, cure)
        return
    for kind, name in rows(conn, "check_tables"):
        yield _of_table(kind, name)
    for row in rows(conn, "check_vacuum", DEAD_ROWS, DEAD_TIMES):
        yield _of_vacuum(*row)
    for kind, name, where in rows(conn, "check_schema"):
        yield _of_home(kind, name, where)
    if not any(relation == "pgsched_supervisors" for relation, _, _ in lacking):
        yield from _of_partitions(dict(rows(conn, "partitions")))


def _of_partitions(served: dict[int, bool]) -> Iterator[Problem]:
    unserved = [number for number, is_served in served.items() if not is_served]
    # With no supervisor at all, nothing is served, and nobody wonders.
    if 0 < len(unserved) < len(served):
        yield Problem(
            "warning",
            f"no live supervisor serves partition {', '.join(map(str, unserved))}: tasks there wait",
            "start one with `pgsched run`, for all partitions or with --partitions",
        )


def _of_table(kind: str, name: str) -> Problem:
    if kind == "index":
        text = f"index {name} is missing or invalid: statements that rely on it become slow, or let duplicates in"
        return Problem("error", text, "create it as in pgsched/store/migrations, or REINDEX it")
    if kind == "trigger":
        return Problem(
            "warning",
            f"trigger {name} of scheduled_tasks is missing or disabled: new tasks wait for the next poll",
            f"ALTER TABLE scheduled_tasks ENABLE TRIGGER {name}",
        )
    if kind == "hidden":
        text = f"row level security hides all rows of table {name} from this role, and no statement fails by it"
        return Problem("error", text, f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY")
    if kind == "policies":
        text = f"row level security decides which rows of table {name} this role sees, and others are never run"
        return Problem("note", text, "make sure that a policy lets it see and change all rows")
    return Problem(
        "warning",
        f"autovacuum is off for table {name}: dead rows will pile up and claims become slow",
        f"ALTER TABLE {name} RESET (autovacuum_enabled)",
    )


def _of_vacuum(name: str, dead: int, alive: int, seconds: float | None, pause: str, cost: str) -> Problem:
    last = "it has never been vacuumed" if seconds is None else f"it was vacuumed {seconds:,.0f} s ago"
    return Problem(
        "warning",
        f"table {name} has {dead:,} dead rows beside {alive:,} living ones, and {last}: claims become slow",
        f"where nothing holds old rows back, lower autovacuum_naptime (now {pause}) and raise "
        f"autovacuum_vacuum_cost_limit (now {cost})",
    )


def _of_home(kind: str, name: str, where: str) -> Problem:
    if kind == "function":
        text = f"function {name} looks for the tables in another schema than {where}: inserts fail, or ranges stay"
        return Problem("error", text, f"ALTER FUNCTION {name} SET search_path = {where}, pg_temp")
    if kind == "owner":
        text = f"role {name}, who owns the tables, may not create another in schema {where}: no ranges can be made"
        return Problem("warning", text, f"GRANT CREATE ON SCHEMA {where} TO {name}")
    return Problem(
        "warning",
        f"{name} may create objects in schema {where}: such as look like PostgreSQL's own are used with others' rights",
        f"REVOKE CREATE ON SCHEMA {where} FROM {name}",
    )


def _of_snapshots(conn: psycopg.Connection[Any]) -> Iterator[Problem]:
    for kind, name, role, application, seconds, transactions in rows(
        conn, "check_snapshots", OLD_SECONDS, OLD_TRANSACTIONS
    ):
        by = f" (role {role}{f', application {application}' if application else ''})" if role else ""
        age = f"for {seconds:,.0f} s" if seconds is not None else f"for {transactions or 0:,} transactions"
        who, cure = {
            "session": (
                f"session {name}{by} has had a transaction open",
                f"end it: SELECT pg_terminate_backend({name})",
            ),
            "standby": (f"a standby at session {name}{by} has had a query open", "end the query on the standby"),
            "slot": (f"replication slot {name} has held back old rows", "make its reader catch up, or drop the slot"),
            "prepared": (f"prepared transaction {name}{by} has been open", "commit it, or roll it back"),
        }[kind]
        yield Problem(
            "warning", f"{' '.join(who.split())} {age}: dead rows pile up meanwhile and claims become slow", cure
        )


def _quoted(conn: psycopg.Connection[Any], name: str) -> str:
    return psycopg.sql.Identifier(name).as_string(conn)
