"""Adopts a plain ``scheduled_tasks`` that somebody made after the article: rows, sequence, owner and grants.

Two steps around the migrations, all in their transaction: `prepare` makes room, `finish` moves the rows. Anything
that would be lost (columns, views, foreign keys, triggers, ...) makes `prepare` refuse, and nothing is changed.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import psycopg

from pgsched.errors import SchemaError
from pgsched.store.statements import rows, run, values

_WHOLE: Final = ("bigint", "integer", "smallint")
_TEXT: Final = ("character varying", "text")
_TIME: Final = ("timestamp with time zone",)
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "id": _WHOLE,
    "task_type": _TEXT,
    "payload": ("jsonb", "json"),
    "run_at": _TIME,
    "status": _TEXT,
    "max_retries": _WHOLE,
    "retry_count": _WHOLE,
    "error_log": _TEXT,
    "created_at": _TIME,
    "updated_at": _TIME,
}
"""The article's columns, each with the types that its rows can be moved from."""


class Adoption(NamedTuple):
    """What `finish` has to know of the table that `prepare` has put aside."""

    last_value: int | None
    """Of its sequence; None: never used, or there is none."""
    dropped_indexes: list[str]
    """Of the user's own making."""


def lock(conn: psycopg.Connection[Any]) -> None:
    """Let nobody else read or write the table until this transaction ends."""
    run(conn, "adopt_lock")


def prepare(conn: psycopg.Connection[Any]) -> Adoption:
    """Lock the table and put it aside, or refuse.

    :raises SchemaError: it is not the article's table, or something hangs on it.
    """
    lock(conn)
    _recognise(dict(rows(conn, "adopt_columns")))
    if obstacles := values(conn, "adopt_obstacles"):
        raise SchemaError(
            f"table scheduled_tasks cannot be adopted while it has: {', '.join(obstacles)}; "
            "remove them and create them anew after `pgsched migrate`"
        )
    dropped = values(conn, "adopt_indexes")
    sequence = rows(conn, "adopt_sequence")
    for _, release in sequence:
        conn.execute(release.encode())
    run(conn, "adopt_rename")
    return Adoption(sequence[0][0] if sequence else None, dropped)


def _recognise(found: Mapping[str, str]) -> None:
    """Refuse a table whose columns are not those of the article."""
    missing = [name for name in COLUMNS if name not in found]
    extra = [name for name in found if name not in COLUMNS]
    changed = [
        f"{name} ({found[name]} instead of {types[0]})"
        for name, types in COLUMNS.items()
        if name in found and found[name] not in types
    ]
    faults = [
        f"{what} {', '.join(names)}"
        for what, names in (("no column", missing), ("columns of its own:", extra), ("changed columns:", changed))
        if names
    ]
    if faults:
        raise SchemaError(
            f"table scheduled_tasks is not the one that pgsched can adopt: it has {'; '.join(faults)}; "
            "rename it, or migrate into another schema by search_path"
        )


def finish(conn: psycopg.Connection[Any], adoption: Adoption) -> list[str]:
    """Move the rows into the new tables, drop the old one, and say so.

    :raises SchemaError: a row does not fit the new table.
    """
    try:
        count = run(conn, "adopt_rows")
        run(conn, "adopt_continue", adoption.last_value)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise SchemaError(f"a row of table scheduled_tasks cannot be adopted: {error.diag.message_primary}") from error
    statements = values(conn, "adopt_grants") + values(conn, "adopt_owner")
    run(conn, "adopt_drop")
    for statement in statements:
        conn.execute(statement.encode())
    run(conn, "adopt_analyze")
    lines = [f"adopted table scheduled_tasks with {count:,} rows"]
    if adoption.dropped_indexes:
        lines.append(f"dropped its indexes {', '.join(adoption.dropped_indexes)}: create them anew if they are needed")
    return lines
