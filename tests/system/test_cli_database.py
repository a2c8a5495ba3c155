"""Databases that are wrong, away, empty, too old, too new or forbidden: one line, a code, and no password (F82, F84).

``run`` and ``check`` start processes and are run as such; the others are called here, which is ten times as fast.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.command import Ended
from tests.inprocess import InProcess, server_place
from tests.support import Server
from tests.system.conftest import CommandLine

SECRET = "s3cr3t%21pw"
DECODED = "s3cr3t!pw"

COMMANDS = [
    ("run", "tasks:app", "--processes", "1"),
    ("enqueue", "compress"),
    ("status",),
    ("tasks",),
    ("show", "1"),
    ("retry", "1"),
    ("cancel", "1"),
    ("prune", "--older-than", "7d"),
]
Run = Callable[..., Ended]

by_name = pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])


def one_line(run: Run, code: int, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command that must end with a code and one line on standard error; return the line."""
    ended = run(*arguments, environment=environment)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert ended.err.startswith("pgsched: ")
    assert ended.err.count("\n") == 1, ended.err
    assert SECRET not in ended.err
    assert DECODED not in ended.err
    return ended.err


@pytest.fixture
def cli(pgsched_cli: CommandLine) -> CommandLine:
    pgsched_cli.module("tasks", "from pgsched import App\napp = App()\n")
    del pgsched_cli.environment["PGSCHED_DSN"]
    return pgsched_cli


@pytest.fixture
def run(cli: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, without any DSN but what the test gives."""
    here = InProcess(cli.environment, capsys, monkeypatch)

    def run(*arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
        if arguments[0] in ("run", "check"):
            return cli.run(*arguments, environment=environment)
        return here(*arguments, environment=environment)

    return run


@pytest.fixture
def place() -> Iterator[Path]:
    """Where an embedded server may live."""
    with server_place() as place:
        yield place


@by_name
def test_without_tables_the_line_names_the_command_to_run(run: Run, empty_dsn: str, command: tuple[str, ...]) -> None:
    assert "run `pgsched migrate`" in one_line(run, 4, *command, "--dsn", empty_dsn)


@by_name
def test_a_newer_schema_asks_for_a_newer_pgsched(run: Run, server: Server, dsn: str, command: tuple[str, ...]) -> None:
    server.sql("INSERT INTO pgsched_schema (version) VALUES (9999)", dsn=dsn)
    assert "upgrade pgsched" in one_line(run, 4, *command, "--dsn", dsn)


@by_name
def test_a_role_without_rights_is_told_so(run: Run, server: Server, dsn: str, command: tuple[str, ...]) -> None:
    role = f"poor_{os.getpid()}"
    server.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{DECODED}'")
    try:
        poor = make_conninfo(dsn, user=role, password=DECODED)
        line = one_line(run, 3, *command, environment={"PGSCHED_DSN": poor})
        assert "permission denied" in line
        assert "pgsched check" in line
    finally:
        server.sql(f"DROP ROLE {role}")


def away(server: Server, form: str) -> list[tuple[str, str]]:
    """DSNs that lead nowhere, with what the line must name."""
    real = conninfo_to_dict(server.dsn)
    host, port = str(real.get("host", "127.0.0.1")), str(real.get("port", 5432))
    targets = [
        ({"host": "127.0.0.1", "port": "1", "dbname": "work"}, "127.0.0.1"),
        ({"host": "no-such-host.invalid", "port": "5432", "dbname": "work"}, "no-such-host.invalid"),
        ({"host": host, "port": port, "dbname": "no_such_database"}, "no_such_database"),
    ]
    found = []
    for target, named in targets:
        if form == "pairs":
            pairs = {**target, "user": "jane", "password": DECODED}
            found.append((make_conninfo("", **pairs), named))
        else:
            place = target["host"].replace("/", "%2F")
            found.append((f"postgresql://jane:{SECRET}@{place}:{target['port']}/{target['dbname']}", named))
    return found


@pytest.mark.parametrize("form", ["url", "pairs"])
@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("command", [("run", "tasks:app"), ("status",), ("migrate",), ("check",)], ids=lambda c: c[0])
def test_a_database_that_is_not_there(
    run: Run, server: Server, form: str, target: int, command: tuple[str, ...]
) -> None:
    dsn, named = away(server, form)[target]
    line = one_line(run, 3, *command, "--dsn", dsn)
    assert named in line
    assert "jane" in line


def test_a_password_from_the_environment(run: Run) -> None:
    environment = {"PGHOST": "127.0.0.1", "PGPORT": "1", "PGUSER": "jane", "PGPASSWORD": DECODED}
    assert "127.0.0.1" in one_line(run, 3, "status", environment=environment)


def test_a_service_of_libpq(run: Run, tmp_path: Path) -> None:
    services = tmp_path / "services.conf"
    services.write_text(f"[work]\nhost=127.0.0.1\nport=1\nuser=jane\npassword={DECODED}\n")
    one_line(run, 3, "status", environment={"PGSERVICE": "work", "PGSERVICEFILE": str(services)})


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db password='{DECODED} dbname=work",
        f"host=db password = {DECODED} nonsense",
        f"postgres//jane:{SECRET}@db/work",
        f"host=db pasword={DECODED}",
        f"postgresql://jane:{SECRET}@[db/work",
    ],
)
def test_a_malformed_dsn_is_not_repeated(run: Run, dsn: str) -> None:
    one_line(run, 2, "status", "--dsn", dsn)


def test_a_port_that_is_none(run: Run) -> None:
    assert "port 54e2" in one_line(run, 3, "status", "--dsn", f"postgresql://jane:{SECRET}@localhost:54e2/work")


def test_a_dsn_in_the_wrong_place(run: Run) -> None:
    assert "jane" in one_line(run, 2, "migrate", f"postgresql://jane:{SECRET}@db/work")


def test_libpqs_environment_is_enough(run: Run, dsn: str) -> None:
    parameters = conninfo_to_dict(dsn)
    environment = {
        variable: str(parameters[name])
        for variable, name in (
            ("PGHOST", "host"),
            ("PGPORT", "port"),
            ("PGUSER", "user"),
            ("PGPASSWORD", "password"),
            ("PGDATABASE", "dbname"),
        )
        if name in parameters
    }
    ended = run("status", environment=environment)
    assert (ended.code, ended.err) == (0, "")


def test_the_option_wins_over_the_variable(run: Run, dsn: str) -> None:
    ended = run("status", "--dsn", dsn, environment={"PGSCHED_DSN": "host=127.0.0.1 port=1"})
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("app", "named"),
    [
        ("nowhere:app", "nowhere"),
        ("tasks:other", "other"),
        ("tasks:number", "number"),
        ("broken:app", "ZeroDivisionError"),
        ("wrong:app", "SyntaxError"),
        ("leaving:app", "leaving"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_an_app_that_cannot_be_imported(pgsched_cli: CommandLine, command: str, app: str, named: str) -> None:
    pgsched_cli.module("tasks", "from pgsched import App\napp = App()\nnumber = 5\n")
    pgsched_cli.module("broken", "1 / 0\n")
    pgsched_cli.module("wrong", "def\n")
    pgsched_cli.module("leaving", "raise SystemExit(3)\n")
    ended = pgsched_cli.run(command, app)
    assert ended.code == (5 if command == "run" else 1), ended.err
    text = ended.err if command == "run" else ended.out
    assert named in [line for line in text.splitlines() if line.startswith(("pgsched: ", "error: "))][-1]
    assert "Traceback" not in ended.err + ended.out


def test_check_waits_for_an_import_as_long_as_it_is_told(pgsched_cli: CommandLine) -> None:
    pgsched_cli.module("slow", "import threading\nthreading.Event().wait(30)\n")
    pgsched_cli.environment["PGSCHED_BOOT_TIMEOUT"] = "1s"
    ended = pgsched_cli.run("check", "slow:app")
    assert ended.code == 1, ended.err
    assert "the boot timeout of 1 s is over" in ended.out


def test_the_embedded_server_is_announced_in_one_line_and_migrated(run: Run, place: Path) -> None:
    ended = run("enqueue", "compress", '{"path": "a"}', environment={"PGSCHED_DATA_DIR": str(place / "data")})
    assert ended == Ended(0, "1\n", f"pgsched: using the embedded server in {place / 'data'}\n")
