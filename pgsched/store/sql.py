"""Reads the statements: one a file in ``sql/``, named by its verb, its head comment saying what it relies on."""

import functools
from importlib.resources import files
from typing import Final

_DIRECTORY: Final = files("pgsched.store") / "sql"


@functools.cache
def load(name: str) -> bytes:
    """The text of ``sql/NAME.sql``.

    :raises FileNotFoundError: there is none; a bug, since names are constants.
    """
    return (_DIRECTORY / f"{name}.sql").read_bytes()
