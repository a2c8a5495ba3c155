"""How results look: aligned tables for people, JSON for programs, times in the local zone with their offset.

Only formatting: nothing here asks the database or ends the command. Text that came from a row is shown with its
control characters escaped, so that a task's error message can play no tricks on a terminal.
"""

import json
from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import click

Cell = str | int | float | datetime | None


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Collection[str] = ()) -> None:
    """Print rows under their headers: columns of numbers to the right, everything else to the left.

    :param right: headers of more columns that stand to the right.
    """
    numeric = [
        header in right or (bool(rows) and all(isinstance(row[column], int | float) for row in rows))
        for column, header in enumerate(headers)
    ]
    lines = [list(headers), *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        click.echo(
            "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip()
        )


def print_fields(fields: Sequence[tuple[str, Cell]]) -> None:
    """Print ``name  value`` lines, aligned; a value of several lines is indented below its name."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        lines = cell_text(value, multiline=True).split("\n")
        click.echo(f"{name.ljust(width)}  {lines[0]}".rstrip())
        for line in lines[1:]:
            click.echo(f"{' ' * width}  {line}".rstrip())


def print_json(value: object) -> None:
    """Print a value as indented JSON; dates as ISO 8601, durations as seconds. ASCII, whatever the locale has."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def cell_text(cell: Cell, *, multiline: bool = False) -> str:
    """A cell as text: ``-`` for None, thousands apart, control characters escaped."""
    match cell:
        case None:
            return "-"
        case datetime():
            return moment(cell)
        case float():
            return f"{cell:,.1f}"
        case int():
            return f"{cell:,}"
    return "".join(char if char.isprintable() or (multiline and char == "\n") else _escaped(char) for char in cell)


def counted(number: int, noun: str) -> str:
    """``1 task``, ``2,000 tasks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def moment(when: datetime) -> str:
    """The local time to the second, with its offset from UTC."""
    return when.astimezone().isoformat(sep=" ", timespec="seconds")


def duration(seconds: float) -> str:
    """Two units at most: ``350ms``, ``42s``, ``3m05s``, ``2h05m``, ``4d03h``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for unit, size, part, below in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below:02d}{part}"
    return f"{whole}s"


def size(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least 1: ``812 B``, ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form")
