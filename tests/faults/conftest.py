"""Fixtures of the tests that need several floors: the command line, and servers of the test's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgsched.ops import embedded
from pgsched.store.schema import migrate
from tests.support import Server
from tests.system.conftest import audit, pgsched_cli
from tests.system.rows import Rows

__all__ = ["audit", "own", "pgsched_cli", "place_for_servers", "rows"]


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


class OwnServer:
    """An embedded server that the test may restart, and tell whom to let in.

    :param migrated: it gets the schema; False: it is a copy that has one.
    """

    def __init__(self, place: Path, *, migrated: bool = True) -> None:
        self.place = place
        self._start()
        if migrated:
            migrate(self.dsn)

    def restart(self) -> None:
        """As an administrator does: sessions are ended, and the server is away for a moment."""
        self.close()
        before = self.dsn
        self._start()
        assert self.dsn == before

    def demand_password(self, role: str) -> None:
        """Let nobody in as this role without one."""
        rules = self.place / "data/pg_hba.conf"
        # Written in place, so that its owner stays.
        rules.write_text(f"local all {role} scram-sha-256\n{rules.read_text()}")
        self.server.sql("SELECT pg_reload_conf()")

    def close(self) -> None:
        self.server.close()
        self._handle.close()

    def _start(self) -> None:
        self._handle = embedded.start(self.place, settings={"fsync": "off"})
        self.dsn = self._handle.dsn
        self.server = Server(self.dsn)


@pytest.fixture
def place_for_servers() -> Iterator[Path]:
    """A directory for servers of the test's own."""
    place = Path(tempfile.mkdtemp(prefix="pgsched-own-"))
    # As root the server runs as another user, who has to get through.
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def own(place_for_servers: Path) -> Iterator[OwnServer]:
    """A server that nobody else uses, with the schema."""
    found = OwnServer(place_for_servers / "server")
    yield found
    found.close()
