"""Builds PostgreSQL array literals from Python sequences; psycopg's own way costs some microseconds an element."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def numbers(values: Iterable[int | float]) -> str:
    """An array of numbers; of floats with all their digits."""
    return "{" + ",".join(map(repr, values)) + "}"


def seconds(values: Sequence[float]) -> str:
    """An array of seconds, to the microsecond, which is what a time in PostgreSQL can tell, in half of the time."""
    return "{" + ("%.6f," * len(values))[:-1] % tuple(values) + "}"


def names(values: Iterable[str]) -> str:
    """An array of plain lower-case words, which need no quotes."""
    return "{" + ",".join(values) + "}"


def places(values: Iterable[str]) -> str:
    """An array of row places, which need quotes and nothing more."""
    return "{" + ",".join([f'"{value}"' for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """An array of texts, None as NULL."""
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def storable(text: str) -> str:
    """The text with what PostgreSQL cannot store (NUL, lone surrogates) replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def ascii_only(text: str) -> str:
    """The text with everything that ASCII lacks, and what PostgreSQL cannot store, as an escape."""
    return storable(text).encode("ascii", "backslashreplace").decode()


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
