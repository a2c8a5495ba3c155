"""Fixtures of the systemd floor: one container for the session, and pgsched as a service in it for each test.

``PGSCHED_TEST_SYSTEMD=1`` asks for it, because a Debian tree is downloaded and booted. Where that cannot be, everything
here is skipped, and the summary says so.
"""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.proxy import Proxy
from tests.support import Server, database_of, eventually
from tests.system.rows import Rows
from tests.systemd.container import APP, Container, Missing, container

ASKED = "PGSCHED_TEST_SYSTEMD"
ROLE = "pgsched_unit"

reasons: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in reasons:
        terminalreporter.write_line(f"NOT TESTED under systemd: {reason}", red=True, bold=True)


def _skip(reason: str) -> None:
    if reason not in reasons:
        reasons.append(reason)
    pytest.skip(f"not tested under systemd: {reason}")


@pytest.fixture(scope="session")
def booted() -> Iterator[Container]:
    """The container."""
    if os.environ.get(ASKED) != "1":
        pytest.skip(f"{ASKED}=1 was not given, which makes a Debian tree and boots it")
    # Not below pytest's own directory, which nobody but root may enter: services run as somebody else.
    place = Path(tempfile.mkdtemp(prefix="pgsched-systemd-"))
    place.chmod(0o755)
    try:
        with container(place) as found:
            found("useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin pgsched", check=True)
            yield found
    except Missing as why:
        _skip(str(why))
    finally:
        shutil.rmtree(place)


@pytest.fixture(scope="session")
def password(server: Server) -> Iterator[str]:
    """The password of a role that the server does not let in without it."""
    word = secrets.token_hex(12)
    server.sql(f"DROP ROLE IF EXISTS {ROLE}")
    server.sql(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{word}'")
    file = Path(server.value("SHOW hba_file"))
    before = file.read_text()
    file.write_text(f"local all {ROLE} scram-sha-256\nhost all {ROLE} all scram-sha-256\n{before}")
    server.sql("SELECT pg_reload_conf()")
    yield word
    file.write_text(before)
    server.sql("SELECT pg_reload_conf()")
    server.sql(f"DROP ROLE {ROLE}")


class Service:
    """pgsched as a service.

    :param unit: as systemctl calls it.
    """

    def __init__(self, booted: Container, unit: str, dsn: str) -> None:
        self.container = booted
        self.unit = unit
        self.dsn = dsn

    def install(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """Write unit and environment file with ``pgsched systemd install``, and let systemd read them."""
        instance = self.unit.partition("@")[2]
        words = ["--instance", instance] if instance else []
        words += ["--directory", str(APP), "--dsn", f"'{self.dsn}'", "--metrics-address", "none", "--force", *options]
        self.container(f"pgsched systemd install tasks:app {' '.join(words)}", check=True)
        with self.container.path(f"/etc/pgsched/{instance or 'pgsched'}.env").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in (environment or {}).items())
        self.container("systemctl daemon-reload", check=True)

    def set(self, **values: object) -> None:
        """Change the unit, as ``systemctl edit`` would."""
        directory = self.container.path(f"/etc/systemd/system/{self.unit}.service.d")
        directory.mkdir(exist_ok=True)
        lines = [f"{name}={value}" for name, value in values.items()]
        (directory / "override.conf").write_text("\n".join(["[Service]", *lines, ""]))
        self.container("systemctl daemon-reload", check=True)

    def show(self, name: str) -> str:
        """A property."""
        return self.container(f"systemctl show --value -p {name} {self.unit}").out.strip()

    @property
    def pid(self) -> int:
        """The supervisor's, as it is called inside."""
        return int(self.show("MainPID"))

    def slots(self) -> dict[int, str]:
        """The workers: their names by pid, as it is called inside."""
        told = self.container("grep -s -E '^(Name|PPid):' /proc/[0-9]*/status").out
        names = {int(pid): name for pid, name in re.findall(r"/proc/(\d+)/status:Name:\s*(\S+)", told)}
        parents = {int(pid): int(parent) for pid, parent in re.findall(r"/proc/(\d+)/status:PPid:\s*(\d+)", told)}
        own = self.pid
        return {pid: name for pid, name in names.items() if name.startswith("pgsched-slot") and parents.get(pid) == own}

    def is_in(self, state: str, timeout: float = 60.0) -> None:
        """Wait for a state."""
        try:
            eventually(lambda: self.show("ActiveState") == state, f"{self.unit} is {state}", timeout=timeout, every=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.container.journal()}") from None

    def clear(self) -> None:
        """Leave nothing of it."""
        self.container(f"systemctl kill --signal KILL {self.unit}; systemctl stop {self.unit}")
        self.container(f"rm -rf /etc/systemd/system/{self.unit}.service.d; systemctl daemon-reload")
        self.container(f"systemctl reset-failed {self.unit}")


@pytest.fixture
def address(booted: Container, password: str, proxy: Proxy) -> str:
    """The test's database as the service is told of it: all but the password, which is in a file for root alone."""
    file = booted.path("/etc/pgsched/pg_service.conf")
    file.parent.mkdir(exist_ok=True)
    file.touch(0o600)
    file.write_text(f"[pgsched]\npassword={password}\n")
    file.chmod(0o600)
    return make_conninfo(
        host="127.0.0.1",
        port=proxy.port,
        dbname=database_of(proxy.dsn),
        user=ROLE,
        service="pgsched",
        sslmode="disable",
    )


@pytest.fixture
def service(booted: Container, address: str, app: None) -> Iterator[Service]:
    """``pgsched.service``, installed for the test's database with two workers, and not started."""
    found = Service(booted, "pgsched", address)
    found.install("--processes", "2")
    yield found
    found.clear()


@pytest.fixture
def mail(booted: Container, address: str, app: None) -> Iterator[Service]:
    """``pgsched@mail.service``, which serves the queue ``mail`` alone."""
    found = Service(booted, "pgsched@mail", address)
    found.install("--processes", "1", "--queues", "mail")
    yield found
    found.clear()


@pytest.fixture
def app(booted: Container) -> None:
    """The module ``tasks`` where the service starts; what it says begins with the test."""
    booted.begin_journal()
    write_app(booted, version=1)


def write_app(booted: Container, version: int) -> None:
    """Install a version of the app."""
    source = re.sub(r"VERSION = \d+", f"VERSION = {version}", (Path(__file__).with_name("app.py")).read_text())
    beside = booted.path(APP / "tasks.new")
    beside.write_text(source)
    beside.replace(booted.path(APP / "tasks.py"))


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)
