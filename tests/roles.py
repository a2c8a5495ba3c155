"""The roles of ``docs/security.md``, made on a real server by the statements that stand on the page.

Roles belong to the whole server, so each test gets them under names of its own.
"""

import itertools
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.pages import blocks, sections
from tests.support import ROOT

PAGE = ROOT / "docs/security.md"
ROLES = ("producer", "supervisor", "viewer")
_numbers = itertools.count()


def statements(heading: str) -> list[str]:
    """The SQL below a heading of the page, a block an element; below none, what comes before the first."""
    return [block.text for block in blocks(sections(PAGE.read_text())[heading], "sql")]


class Role:
    """One of the page's roles, and a user who is a member of it.

    :param dsn: of the tables' owner.
    :param kind: one of `ROLES`.
    """

    def __init__(self, dsn: str, kind: str) -> None:
        suffix = f"_{os.getpid()}_{next(_numbers)}"
        self.kind = kind
        self.group = f"pgsched_{kind}{suffix}"
        self.user = f"user{suffix}"
        self.password = secrets.token_hex(12)
        self._owner = dsn
        self.dsn = make_conninfo(dsn, user=self.user, password=self.password)
        self._run(statements("")[0])
        self.grant(0)
        login = "CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}"
        self._run(sql.SQL(login).format(sql.Identifier(self.user), self.password, sql.Identifier(self.group)))

    def grant(self, block: int) -> None:
        """Run one block of the role's section."""
        self._run(re.sub(rf"\bpgsched_{self.kind}\b", self.group, statements(self.kind.capitalize())[block]))

    def drop(self) -> None:
        """Remove role and user."""
        for name in map(sql.Identifier, (self.user, self.group)):
            self._run(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))

    def _run(self, query: str | sql.Composed) -> None:
        with psycopg.connect(self._owner, autocommit=True, application_name="tests") as connection:
            connection.execute(query.encode() if isinstance(query, str) else query)


@contextmanager
def role(dsn: str, kind: str) -> Iterator[Role]:
    """A role that is gone after the body."""
    made = Role(dsn, kind)
    try:
        yield made
    finally:
        made.drop()
