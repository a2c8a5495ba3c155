"""Passwords that somebody else makes for each new connection: by a command, or by a function of the user's."""

import os
import shlex
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgsched import App, DatabaseError
from tests.command import Command
from tests.faults.conftest import OwnServer
from tests.support import eventually, processes
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"

TOKENS = """
import os, pathlib, sys, threading

here = pathlib.Path(__file__).parent
print("this is no password")
threading.Thread(target=threading.Event().wait).start()

def token() -> str:
    with (here / "calls").open("a") as calls:
        print(os.getpid(), os.getppid(), file=calls)
    print("nor is this")
    return (here / "secret").read_text().strip()
"""


class Vault:
    """Where the password is, for a role whose password changes."""

    def __init__(self, own: OwnServer, place: Path) -> None:
        self._server = own.server
        self._secret = place / "secret"
        self._calls = place / "calls"
        self.number = 0
        (place / "tokens.py").write_text(TOKENS)
        own.server.sql("CREATE ROLE app LOGIN SUPERUSER")
        own.demand_password("app")
        self.dsn = make_conninfo(own.dsn, user="app")
        self.change()

    @property
    def command(self) -> str:
        """What prints the password, and notes that it was asked."""
        script = f"echo $$ $PPID >>{shlex.quote(str(self._calls))}; cat {shlex.quote(str(self._secret))}"
        return shlex.join(["sh", "-c", script])

    @property
    def environment(self) -> dict[str, str]:
        return {"PGSCHED_DSN": self.dsn, "PGSCHED_PASSWORD_COMMAND": self.command}

    @property
    def calls(self) -> list[list[int]]:
        """Process and its parent, for each call."""
        text = self._calls.read_text() if self._calls.exists() else ""
        return [[int(word) for word in line.split()] for line in text.splitlines()]

    def change(self, *, tell: bool = True) -> None:
        """From now on it is another one; False: and those who ask get the old one."""
        self.number += 1
        self._server.sql(f"ALTER ROLE app PASSWORD 's3cr3t-{self.number}'")
        if tell:
            self.tell()

    def tell(self) -> None:
        self._secret.write_text(f"s3cr3t-{self.number}\n")


@pytest.fixture
def vault(own: OwnServer, tmp_path: Path) -> Vault:
    return Vault(own, tmp_path)


@pytest.fixture
def own_rows(own: OwnServer) -> Rows:
    return Rows(own.server, own.dsn)


def stops(command: Command) -> None:
    command.signal(signal.SIGTERM)
    assert command.wait(10).code == 0, command
    assert "s3cr3t" not in command.err, "a password was logged"
    assert "Traceback" not in command.err


def strike(own: OwnServer, name: str) -> None:
    """End the sessions of that name."""
    own.server.terminate(own.dsn, name)
    eventually(lambda: name not in [backend.application_name for backend in own.server.backends(own.dsn)])


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("command", id="command"),
        pytest.param("option", id="command by option"),
        pytest.param("function", id="function"),
    ],
)
def test_f48_each_new_connection_has_a_new_password(
    way: str, own: OwnServer, vault: Vault, own_rows: Rows, pgsched_cli: CommandLine
) -> None:
    """F48: of a supervisor, of a task that enqueues the next one, and of commands."""
    options: tuple[str, ...] = ()
    environment = {"PGSCHED_DSN": vault.dsn}
    match way:
        case "command":
            environment["PGSCHED_PASSWORD_COMMAND"] = vault.command
        case "option":
            options = ("--password-command", vault.command)
        case "function":
            environment["PGSCHED_PASSWORD_FROM"] = "tokens:token"
    running = pgsched_cli("run", APP, "--processes", "1", *options, environment=environment)
    own_rows.add("chain", {"left": 1})
    own_rows.all_ended(timeout=20)
    names = {backend.application_name for backend in own.server.backends(own.dsn)}
    assert names == {"pgsched work", "pgsched lease", "pgsched upkeep", "pgsched listen", "pgsched enqueue"}
    before = len(vault.calls)
    assert 0 < before < len(names), "what is opened together needs one password"
    vault.change()
    own.server.terminate(own.dsn, "pgsched %")
    own_rows.add("chain", {"left": 1})
    own_rows.all_ended(timeout=20)
    assert len(vault.calls) > before
    assert "password authentication failed" not in running.err, "one that was refused was not replaced at once"
    for command in (("enqueue", "tick"), ("status",), ("check",), ("migrate",)):
        vault.change()
        ended = pgsched_cli.run(*command, *options, environment=environment)
        assert ended.code == 0, ended
        assert "s3cr3t" not in ended.out + ended.err
    assert running.pid not in [pid for pid, _ in vault.calls], "the supervisor has run it itself"
    assert running.pid in [parent for _, parent in vault.calls]
    stops(running)


def test_f48_an_app_calls_a_function_of_its_program(own: OwnServer, vault: Vault, own_rows: Rows) -> None:
    """F48: there is nothing to protect from it."""
    asked: list[int] = []

    def password() -> str:
        asked.append(vault.number)
        return f"s3cr3t-{vault.number}"

    app = App(vault.dsn, password=password)

    @app.task
    def tick() -> None: ...

    with closing(app):
        tick.enqueue()
        vault.change()
        tick.enqueue()
        strike(own, "pgsched enqueue")
        tick.enqueue()
        assert asked == [1, 2]
        assert own_rows.count("status = 'queued'") == 3
        strike(own, "pgsched enqueue")
        vault.change()
        vault.number -= 1
        with pytest.raises(DatabaseError, match="password authentication failed"):
            tick.enqueue()


@pytest.mark.slow
def test_f48_what_makes_passwords_may_fail_for_a_while(
    own: OwnServer, vault: Vault, own_rows: Rows, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F48: an outage like any other, and no more calls than attempts to connect."""
    running = pgsched_cli("run", APP, "--processes", "1", "--lease", "100", environment=vault.environment)
    own_rows.add("tick")
    own_rows.all_ended(timeout=20)
    (tmp_path / "secret").rename(tmp_path / "elsewhere")
    vault.change(tell=False)
    own.server.terminate(own.dsn, "pgsched %")
    running.wait_for(r"lost .*password command sh failed \(exit code 1\): cat: ")
    before, until = len(vault.calls), time.monotonic() + 3
    eventually(lambda: time.monotonic() > until)
    assert len(vault.calls) - before < 30, "it asks all the time"
    vault.tell()
    own_rows.add("tick")
    own_rows.all_ended(timeout=20)
    stops(running)


@pytest.mark.slow
def test_f48_what_hangs_is_killed_and_delays_no_end(
    own: OwnServer, vault: Vault, own_rows: Rows, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F48: with whatever it has started; and the supervisor goes on meanwhile."""
    running = pgsched_cli("run", APP, "--processes", "1", "--db-timeout", "2", environment=vault.environment)
    own_rows.add("tick")
    own_rows.all_ended(timeout=20)
    secret = tmp_path / "secret"
    secret.unlink()
    # Whoever opens it waits for somebody to write.
    os.mkfifo(secret)
    vault.change(tell=False)
    own.server.terminate(own.dsn, "pgsched %")
    running.wait_for("password command sh gave no password within 2 s")

    def under_way() -> list[int]:
        return [found.pid for found in processes() if str(secret) in found.command and found.name != "sh"]

    eventually(under_way, "another call hangs", timeout=20)
    began = time.monotonic()
    stops(running)
    assert time.monotonic() - began < 10
    eventually(lambda: not under_way(), "nothing of it is left")


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("COMMAND", "", 2, "the password command is empty"),
        ("COMMAND", "sh -c 'echo", 2, "the password command cannot be read: No closing quotation"),
        ("COMMAND", "/nowhere/aws rds", 3, "password command /nowhere/aws cannot be run: No such file or directory"),
        ("COMMAND", "sh -c 'echo s3cr3t; echo no s3cr3t >&2; exit 3'", 3, "sh failed (exit code 3): no ***"),
        ("COMMAND", "sh -c 'kill -9 $$'", 3, "password command sh failed (SIGKILL)"),
        ("COMMAND", "true", 3, "printed 0 lines, must print one"),
        ("COMMAND", "printf 's3cr3t\\ns3cr3t'", 3, "printed 2 lines, must print one"),
        ("COMMAND", "sleep 60", 3, "password command sleep gave no password within 1 s"),
        ("FROM", "tokens", 2, "password function 'tokens': must be module:function"),
        ("FROM", "nowhere:token", 3, "nowhere:token failed (exit code 1): ModuleNotFoundError: No module named"),
        ("FROM", "bad:nothing", 3, "bad:nothing failed (exit code 1): AttributeError: "),
        ("FROM", "bad:raises", 3, "bad:raises failed (exit code 1): LookupError: two lines"),
        ("FROM", "bad:leaves", 3, "bad:leaves failed (exit code 1): SystemExit: 0"),
        ("FROM", "bad:number", 3, "bad:number failed (exit code 1): TypeError: it returned int, must be str"),
        ("FROM", "bad:hangs", 3, "password function bad:hangs gave no password within 1 s"),
    ],
)
def test_f48_no_password_is_one_line(
    variable: str, value: str, code: int, words: str, pgsched_cli: CommandLine
) -> None:
    """F48."""
    pgsched_cli.module(
        "bad",
        "import sys, time\n"
        "def raises(): raise LookupError('two\\nlines')\n"
        "def leaves(): sys.exit(0)\n"
        "def number(): return 5\n"
        "def hangs(): time.sleep(60)\n",
    )
    environment = {f"PGSCHED_PASSWORD_{variable}": value}
    ended = pgsched_cli.run("status", "--db-timeout", "1", environment=environment)
    assert ended.code == code, ended
    [line] = ended.err.splitlines()
    assert words in line
    assert "s3cr3t" not in line


def test_a_password_for_no_database_is_refused(pgsched_cli: CommandLine, tmp_path: Path) -> None:
    """The embedded server asks for none: the DSN was lost."""
    command = {"PGSCHED_PASSWORD_COMMAND": f"touch {tmp_path / 'asked'}"}
    both = pgsched_cli.run("status", environment={**command, "PGSCHED_PASSWORD_FROM": "tokens:token"})
    assert (both.code, "leave one of them out" in both.err) == (2, True)
    del pgsched_cli.environment["PGSCHED_DSN"]
    ended = pgsched_cli.run("status", environment=command)
    assert (ended.code, "no database" in ended.err) == (2, True)
    assert not (tmp_path / "asked").exists()


def test_a_password_in_the_dsn_is_used_instead(vault: Vault, pgsched_cli: CommandLine) -> None:
    """And a wrong one that was made is shown to nobody."""
    environment = {**vault.environment, "PGSCHED_DSN": f"{vault.dsn} password=s3cr3t-1"}
    assert pgsched_cli.run("status", environment=environment).code == 0
    assert vault.calls == []
    vault.change(tell=False)
    ended = pgsched_cli.run("status", environment=vault.environment)
    assert (ended.code, len(vault.calls)) == (3, 1)
    assert "password authentication failed" in ended.err
    assert "s3cr3t" not in ended.err
