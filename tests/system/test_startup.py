"""The way up: nobody is told "ready" before the database says so, nothing hangs, and signals are heard meanwhile."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.proxy import Proxy
from tests.support import Server, descendants, eventually, gone
from tests.system.conftest import CommandLine
from tests.system.names import NameServer
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


class NotifySocket:
    """What systemd would hear."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._heard: list[str] = []

    @property
    def heard(self) -> list[str]:
        while True:
            try:
                self._heard.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self._heard

    @property
    def ready(self) -> bool:
        return any("READY=1" in message for message in self.heard)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    found = NotifySocket(tmp_path / "notify")
    yield found
    found.close()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A DSN whose server's packets are dropped: a full accept queue answers to no SYN."""
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        yield f"host=127.0.0.1 port={deaf.getsockname()[1]} dbname=none user=nobody"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def test_f33_ready_comes_with_the_lease_and_stopping_with_the_signal(
    server: Server, dsn: str, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """F33."""
    with psycopg.connect(dsn, application_name="tests") as holder:
        holder.execute("LOCK TABLE pgsched_supervisors IN EXCLUSIVE MODE")
        command = pgsched_cli("run", APP, "--processes", "1", environment=notify.environment)
        eventually(lambda: server.waits_for_lock(dsn), "it wants to register")
        assert not notify.ready
        holder.rollback()
    eventually(lambda: notify.ready, "it is ready")
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 1
    assert not any("STOPPING=1" in message for message in notify.heard)
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    assert any("STOPPING=1" in message for message in notify.heard)
    assert sum("READY=1" in message for message in notify.heard) == 1


def test_f33_a_signal_is_heard_while_it_waits_for_its_lease(
    server: Server, dsn: str, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """F33."""
    with psycopg.connect(dsn, application_name="tests") as holder:
        holder.execute("LOCK TABLE pgsched_supervisors IN EXCLUSIVE MODE")
        command = pgsched_cli("run", APP, "--processes", "1", environment=notify.environment)
        eventually(lambda: server.waits_for_lock(dsn), "it wants to register")
        command.signal(signal.SIGTERM)
        ended = command.wait()
        holder.rollback()
    assert ended.code == 0, command
    assert "Traceback" not in ended.err, command
    assert not notify.ready


@pytest.mark.parametrize("kind", ["silent", "dropping"])
def test_f33_a_server_that_does_not_answer_ends_the_start_in_time(
    kind: str, proxy: Proxy, black_hole: str, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """F33: with exit code 3 and one line."""
    proxy.silence()
    dsn = proxy.dsn if kind == "silent" else black_hole
    started = time.monotonic()
    options = ("--processes", "1", "--db-timeout", "2")
    ended = pgsched_cli.run("run", APP, *options, environment={"PGSCHED_DSN": dsn, **notify.environment})
    assert ended.code == 3, ended
    assert 1.5 < time.monotonic() - started < 20.0
    assert len(ended.err.splitlines()) == 1, ended
    assert "127.0.0.1" in ended.err
    assert not notify.ready


@pytest.mark.parametrize("kind", ["silent", "dropping"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_f33_a_signal_ends_the_wait_for_a_server_that_does_not_answer(
    number: signal.Signals,
    kind: str,
    proxy: Proxy,
    black_hole: str,
    pgsched_cli: CommandLine,
    notify: NotifySocket,
) -> None:
    """F33."""
    proxy.silence()
    dsn = proxy.dsn if kind == "silent" else black_hole
    command = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_DSN": dsn, **notify.environment})
    port = int(dsn.partition("port=")[2].split()[0])
    eventually(lambda: connects_to(command.pid, port), "it connects")
    command.signal(number)
    ended = command.wait()
    assert ended.code in (0, -number, 130), command
    assert "Traceback" not in ended.err, command
    assert not notify.ready


def test_a_database_that_is_away_at_the_start_is_waited_for(
    proxy: Proxy, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """As the unit file says it: its limit of starts must not be used up by an outage."""
    proxy.refuse()
    environment = {"PGSCHED_DSN": proxy.dsn, "PGSCHED_WAIT_FOR_DATABASE": "50s", **notify.environment}
    command = pgsched_cli("run", APP, "--processes", "1", environment=environment)
    command.wait_for("pgsched: waiting 50 s for the database: cannot connect to ")
    assert not notify.ready
    # There is nothing to reload yet.
    command.signal(signal.SIGHUP)
    proxy.pass_on()
    eventually(lambda: notify.ready, "it is ready", timeout=20)
    assert command.err.count("waiting") == 1
    command.signal(signal.SIGTERM)
    assert command.wait(10).code == 0, command


def test_the_wait_for_a_database_has_an_end(proxy: Proxy, pgsched_cli: CommandLine, notify: NotifySocket) -> None:
    proxy.refuse()
    environment = {"PGSCHED_DSN": proxy.dsn, **notify.environment}
    started = time.monotonic()
    ended = pgsched_cli.run("run", APP, "--wait-for-database", "1s", environment=environment)
    assert time.monotonic() - started >= 1.0
    assert ended.code == 3, ended
    assert len(ended.err.splitlines()) == 2, ended


def test_f33_a_signal_ends_the_wait_for_a_database(proxy: Proxy, pgsched_cli: CommandLine) -> None:
    """F33: nothing has begun, so it is no failure."""
    proxy.refuse()
    command = pgsched_cli("run", APP, "--wait-for-database", "50s", environment={"PGSCHED_DSN": proxy.dsn})
    command.wait_for("waiting 50 s")
    command.signal(signal.SIGTERM)
    ended = command.wait(15)
    assert ended.code == 0, command
    assert len(ended.err.splitlines()) == 1, command


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_f33_a_signal_does_not_wait_for_a_silent_name_server(
    number: signal.Signals, code: int, proxy: Proxy, pgsched_cli: CommandLine
) -> None:
    """F33."""
    names = NameServer(pgsched_cli)
    names.silence()
    command = pgsched_cli("run", APP, environment={"PGSCHED_DSN": names.dsn(proxy)})
    names.wait_for_question()
    command.signal(number)
    ended = command.wait(15)
    assert ended.code == code, command
    assert not ended.err, command


def test_a_signal_leaves_nothing_behind_that_makes_a_password(dsn: str, pgsched_cli: CommandLine) -> None:
    environment = {"PGSCHED_DSN": dsn, "PGSCHED_PASSWORD_COMMAND": "sleep 600"}
    command = pgsched_cli("run", APP, "--db-timeout", "60", environment=environment)
    eventually(lambda: any(found.name == "sleep" for found in descendants(command.pid)), "it is asked")
    [asked] = [found.pid for found in descendants(command.pid)]
    command.signal(signal.SIGTERM)
    ended = command.wait(15)
    assert ended.code == 0, command
    assert "Traceback" not in ended.err, command
    eventually(lambda: gone(asked), "it was killed")


SLOW_PLACE = """
import tempfile, time
from pathlib import Path

here, make = Path(__file__).parent, tempfile.mkdtemp

def mkdtemp(*arguments, **named):
    made = make(*arguments, **named)
    (here / "made").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    return made

tempfile.mkdtemp = mkdtemp
"""


def test_f33_a_signal_before_the_loop_hears_it_leaves_no_directory(pgsched_cli: CommandLine, tmp_path: Path) -> None:
    """F33."""
    pgsched_cli.module("sitecustomize", SLOW_PLACE)
    metrics = tmp_path / "metrics"
    command = pgsched_cli("run", APP, "--processes", "1", environment={"PROMETHEUS_MULTIPROC_DIR": str(metrics)})
    eventually((tmp_path / "made").exists, "the directory is made")
    command.signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    ended = command.wait()
    assert ended.code == 0, command
    assert "Traceback" not in ended.err, command
    assert not list(metrics.iterdir())


PRINTS = """
import os
from pgsched import App

app = App()

@app.task
def shout() -> None:
    os.write(2, bytes(range(32)) + b"\\n")
"""


def test_what_workers_print_is_no_signal_where_streams_were_closed(rows: Rows, pgsched_cli: CommandLine) -> None:
    """The loop's own sockets would get their numbers, and a byte in there stands for a signal."""
    pgsched_cli.module("prints", PRINTS)
    closed = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    command = pgsched_cli("run", "prints:app", "--processes", "1", wrapper=closed)
    for _ in range(2):
        rows.add("shout")
        rows.all_ended()
    assert rows.count("status = 'completed'") == 2
    assert {os.readlink(f"/proc/{command.pid}/fd/{number}") for number in range(3)} == {os.devnull}
    assert command.running
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command


def connects_to(pid: int, port: int) -> bool:
    """Whether the process has a TCP connection to a local port, or asks for one."""
    mine = set(sockets_of(pid))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(f":{port:04X}") and fields[9] in mine:
            return True
    return False


def sockets_of(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]


WAITS = """
import time
from pathlib import Path
from pgsched import App

app = App()

@app.task
def one() -> int:
    return 1

Path("importing").touch()
while not Path("go").exists():
    time.sleep(0.01)
"""


def test_f33_a_database_that_vanishes_during_the_start_is_waited_for(
    proxy: Proxy, rows: Rows, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """F33: once the first check has passed, it tries again, visibly not ready, until the database is back."""
    pgsched_cli.module("waits", WAITS)
    command = pgsched_cli(
        "run", "waits:app", "--processes", "1", environment={"PGSCHED_DSN": proxy.dsn, **notify.environment}
    )
    eventually((pgsched_cli.directory / "importing").exists, "the module is being imported")
    proxy.refuse()
    (pgsched_cli.directory / "go").touch()
    command.wait_for("database_lost")
    assert not notify.ready
    proxy.pass_on()
    eventually(lambda: notify.ready, "it is ready")
    [task_id] = rows.add("one")
    eventually(lambda: rows.row(task_id).status == "completed", "it works")
    command.signal(signal.SIGTERM)
    assert command.wait().code == 0, command
    assert command.err.count("database_back") == 1, command


def test_f84_a_missing_schema_and_a_missing_app_end_the_start_at_once(
    empty_dsn: str, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    """F84, F24: one line that says what to do, and a code of its own."""
    ended = pgsched_cli.run("run", APP, environment={"PGSCHED_DSN": empty_dsn, **notify.environment})
    assert (ended.code, len(ended.err.splitlines())) == (4, 1), ended
    assert "pgsched migrate" in ended.err
    ended = pgsched_cli.run("run", "nowhere:app", environment=notify.environment)
    assert ended.code == 5, ended
    assert "nowhere" in ended.err
    assert not notify.ready


@pytest.mark.parametrize(
    ("method", "seconds", "error"),
    [
        ("forkserver", 2, "cannot import slow:app: the boot timeout of 2 s is over"),
        # Long enough for a slow machine to begin with the import.
        (
            "spawn",
            6,
            "the worker was killed by signal 9 (SIGKILL) because it was not ready after the boot timeout of 6 s",
        ),
    ],
)
def test_an_app_that_is_not_imported_in_time_ends_the_start(
    method: str, seconds: int, error: str, rows: Rows, pgsched_cli: CommandLine, notify: NotifySocket
) -> None:
    pgsched_cli.module("slow", "import time\ntime.sleep(600)\n")
    options = ("--boot-timeout", f"{seconds}s", "--start-method", method)
    ended = pgsched_cli.run("run", "slow:app", "--processes", "1", *options, environment=notify.environment)
    assert ended.code == 6, ended
    assert error in ended.err.splitlines()[-1]
    assert not notify.ready
