"""Fixtures of the tests on several hosts: the network, a server that all hosts reach, and supervisors on them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgsched.store.schema import migrate
from tests import audit as audit_module
from tests.audit import Audit
from tests.command import Command
from tests.hosts.ledger import Ledger
from tests.hosts.network import Network, missing
from tests.hosts.tasks import NOTES
from tests.support import ROOT, Server, database_of, descendants
from tests.system.conftest import audit
from tests.system.rows import Rows

__all__ = ["audit"]

HOSTS = ("ash", "birch")


@pytest.fixture(scope="package")
def place() -> Iterator[Path]:
    """A directory that the server's user can enter, for as long as the server runs."""
    if reason := missing():
        pytest.skip(reason)
    found = Path(tempfile.mkdtemp(prefix="pgsched-hosts-"))
    found.chmod(0o711)
    yield found
    shutil.rmtree(found)


@pytest.fixture(scope="package")
def wires(place: Path) -> Iterator[Network]:
    network = Network(HOSTS, place)
    yield network
    network.close()


@pytest.fixture(scope="package")
def server(wires: Network, place: Path) -> Iterator[Server]:
    """The server of these tests instead of the session's; seen here over its Unix socket."""
    command = [*wires.inside("database"), sys.executable, "-m", "tests.hosts.database", str(place / "server")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = Server(process.stdout.readline().strip())
        yield found
        found.close()
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture(scope="package")
def template(server: Server) -> Iterator[str]:
    dsn = server.create()
    migrate(dsn)
    yield database_of(dsn)
    server.drop(dsn)


@pytest.fixture
def network(wires: Network) -> Iterator[Network]:
    """The network, whole again after the test."""
    yield wires
    for host in HOSTS:
        wires.mend(host)


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where tasks note that they run."""
    found = tmp_path / "notes"
    found.mkdir()
    return found


@pytest.fixture
def ledger(server: Server, dsn: str, notes: Path, audit: Audit) -> Ledger:
    return Ledger(server, dsn, notes, audit)


class Supervisor(Command):
    """``pgsched run`` on a host."""

    def tell(self, number: int) -> None:
        """Send a signal to the supervisor itself, past what has put it there."""
        os.kill(next(found.pid for found in descendants(self.pid) if found.parent == self.pid), number)


Start = Callable[..., Supervisor]


@pytest.fixture
def start(network: Network, dsn: str, tmp_path: Path, notes: Path) -> Iterator[Start]:
    """``start("ash", "--processes", "1")`` starts a supervisor on that host."""
    started: list[Supervisor] = []

    def start(
        host: str, *options: str, own_boot: bool = True, own_pids: bool = True, keepalives: bool = True
    ) -> Supervisor:
        environment = {
            "PGSCHED_DSN": make_conninfo(dsn, host=network.database_of(host), keepalives=int(keepalives)),
            "PGSCHED_METRICS_ADDRESS": "127.0.0.1:0",
            # Signing in goes past the wire: it is for us to know, not for the task.
            audit_module.VARIABLE: dsn,
            NOTES: str(notes),
        }
        wrapper = network.on(host, own_boot=own_boot, own_pids=own_pids)
        started.append(Supervisor(("run", "tests.hosts.tasks:app", *options), environment, tmp_path, wrapper=wrapper))
        started[-1].wait_for(" registered ")
        return started[-1]

    yield start
    for command in started:
        command.close()
