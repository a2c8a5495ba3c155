"""TLS to a real server: every connection is encrypted and verified, and one that cannot be is one line."""

import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pgsched import App, DatabaseError
from pgsched.store import check
from tests.faults.tls_server import MISSING, TlsServer, installed
from tests.support import eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
COMMANDS = [
    ("migrate",),
    ("check",),
    ("enqueue", "tick"),
    ("status",),
    ("tasks",),
    ("show", "1"),
    ("retry", "1"),
    ("cancel", "1"),
    ("prune", "--older-than", "7d"),
]
OF_A_RUN = {"pgsched work", "pgsched lease", "pgsched upkeep", "pgsched listen", "pgsched enqueue"}

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    place = Path(tempfile.mkdtemp(prefix="pgsched-tls-"))
    # As root the server runs as another user, who has to get through.
    place.chmod(0o711)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with closing(TlsServer(place, port)) as found:
        yield found
    shutil.rmtree(place)


@pytest.fixture
def tls_rows(tls: TlsServer) -> Rows:
    return Rows(tls.server, tls.server.dsn)


def test_f47_every_connection_is_encrypted_and_verified(
    tls: TlsServer, tls_rows: Rows, pgsched_cli: CommandLine
) -> None:
    """F47: those of a supervisor, of a task that enqueues, and of every command."""
    environment = {"PGSCHED_DSN": tls.dsn()}
    running = pgsched_cli("run", APP, "--processes", "1", environment=environment)
    tls_rows.add("chain", {"left": 1})
    tls_rows.all_ended(timeout=20)
    sessions = tls.server.sql(
        "SELECT application_name, ssl, version FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
        " WHERE application_name LIKE 'pgsched%'"
    )
    assert {name for name, _, _ in sessions} == OF_A_RUN
    assert {(ssl, version) for _, ssl, version in sessions} == {(True, "TLSv1.3")}
    for command in COMMANDS:
        assert pgsched_cli.run(*command, environment=environment).code in (0, 1), command
    made = tls.connected()
    # The server's own log knows those that have ended, too; its tables were made over its socket.
    assert {f"pgsched {name}" for name, *_ in COMMANDS} | OF_A_RUN <= {name for name, _ in made}
    assert [name for name, encrypted in made if not encrypted] == ["pgsched migrate"]
    running.signal(signal.SIGTERM)
    assert running.wait(10).code == 0, running


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        pytest.param({"sslrootcert": "another.pem"}, "sslrootcert in the DSN must name the file", id="another CA"),
        pytest.param({"host": "other.test"}, "does not match host name", id="another name"),
        pytest.param({"sslmode": "disable", "sslrootcert": ""}, "no encryption", id="no TLS"),
    ],
)
def test_f47_what_cannot_be_verified_is_one_line_for_everybody(
    parameters: dict[str, str], words: str, tls: TlsServer, pgsched_cli: CommandLine
) -> None:
    """F47."""
    if parameters.get("sslrootcert"):
        parameters = {"sslrootcert": str(tls.another.certificate)}
    wrong = tls.dsn(**parameters)
    before = len(tls.connected())
    for command in [("run", APP), *COMMANDS]:
        ended = pgsched_cli.run(*command, environment={"PGSCHED_DSN": wrong})
        assert ended.code == 3, ended
        [line] = ended.err.splitlines()
        assert words in line
    app = App(wrong)

    @app.task
    def tick() -> None: ...

    with closing(app), pytest.raises(DatabaseError, match=words):
        tick.enqueue()
    assert len(tls.connected()) == before


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, None),
        ({"sslmode": "require", "sslrootcert": ""}, "is encrypted, but nobody looks whether it leads to the right"),
        ({"sslmode": "disable", "sslrootcert": "", "user": "plain"}, "is not encrypted: "),
        ({"sslmode": "disable", "sslrootcert": "", "user": "plain", "host": "localhost"}, None),
    ],
)
def test_check_says_what_is_not_encrypted_or_not_verified(
    parameters: dict[str, str], words: str | None, tls: TlsServer
) -> None:
    texts = [problem.text for problem in check.check(tls.dsn(**parameters))]
    assert [text for text in texts if "encrypted" in text] == [text for text in texts if words and words in text]
    assert any(words in text for text in texts) if words else True


@pytest.mark.slow
def test_f47_the_root_certificate_may_be_changed_while_it_runs(
    tls: TlsServer, tls_rows: Rows, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F47: the CA is replaced, as RDS does every few years; a bundle with both keeps the connections."""
    bundle = tmp_path / "bundle.pem"
    shutil.copy(tls.authority.certificate, bundle)
    running = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_DSN": tls.dsn(sslrootcert=str(bundle))})
    tls_rows.add("tick")
    tls_rows.all_ended(timeout=20)
    try:
        tls.certify(tls.another)
        tls.reload()
        # The server takes it up in its own time.
        eventually(lambda: _ends(tls), "no verified connection is made any more")
        tls.server.terminate(tls.server.dsn, "pgsched %")
        running.wait_for(r"lost .*certificate verify failed")
        bundle.write_text(tls.authority.certificate.read_text() + tls.another.certificate.read_text())
        tls_rows.add("tick")
        tls_rows.all_ended(timeout=20)
        running.signal(signal.SIGTERM)
        assert running.wait(10).code == 0, running
    finally:
        tls.certify(tls.authority)
        tls.reload()


def _ends(tls: TlsServer) -> bool:
    app = App(tls.dsn())

    @app.task
    def tick() -> None: ...

    with closing(app):
        try:
            tick.options(delay="1h", unique_key="probe").enqueue()
        except DatabaseError:
            return True
    return False
