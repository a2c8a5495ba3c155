"""A certificate that cannot be verified ends the start in one line, and one that can be is verified by everybody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.tls import ANOTHER, CERTIFICATE, TlsRelay
from tests.proxy import Proxy
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


@pytest.fixture
def relay(proxy: Proxy) -> Iterator[TlsRelay]:
    found = TlsRelay(proxy)
    yield found
    found.close()


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        pytest.param({"sslmode": "verify-full"}, "sslrootcert", id="no root file"),
        pytest.param({"sslmode": "verify-full", "sslrootcert": "/nowhere.pem"}, "/nowhere.pem", id="missing root file"),
        pytest.param({"sslmode": "verify-full", "sslrootcert": str(ANOTHER)}, "sslrootcert", id="stale root file"),
        pytest.param({"sslmode": "require", "sslrootcert": str(ANOTHER)}, "sslrootcert", id="require verifies too"),
        pytest.param(
            {"sslmode": "verify-full", "sslrootcert": str(CERTIFICATE), "host": "127.0.0.1"},
            "does not match host name",
            id="name by address",
        ),
    ],
)
def test_f47_a_certificate_that_is_not_verified_is_one_line(
    command: str, parameters: dict[str, str], words: str, relay: TlsRelay, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F47."""
    environment = {"PGSCHED_DSN": relay.dsn(**parameters), "HOME": str(tmp_path)}
    ended = pgsched_cli.run(command, *([APP] if command == "run" else []), environment=environment)
    assert ended.code == 3, ended
    [line] = ended.err.splitlines()
    assert "certificate" in line
    assert words in line


def test_f47_the_root_certificate_reaches_every_connection(
    relay: TlsRelay, pgsched_cli: CommandLine, rows: Rows
) -> None:
    """F47: the relay takes nothing but TLS, and the client nobody but this server."""
    through = {"PGSCHED_DSN": relay.dsn(sslmode="verify-full", sslrootcert=str(CERTIFICATE))}
    assert pgsched_cli.run("enqueue", "chain", '{"left": 2}', environment=through).code == 0
    pgsched_cli("run", APP, "--processes", "1", environment=through)
    # A task that enqueues the next one: the worker's own connection.
    rows.all_ended()
    assert rows.count("status = 'completed'") == 3
    assert relay.encrypted >= 4
