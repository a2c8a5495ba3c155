"""The steps of docs/rds.md as they stand there, with server, CA, program `aws` and module `boto3` of our own."""

import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgsched.store import check
from tests.faults.conftest import OwnServer
from tests.faults.tls_server import MISSING, TlsServer, installed
from tests.roles import statements
from tests.support import ROOT, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

PAGE = (ROOT / "docs/rds.md").read_text()
HOST = "work.abc123.eu-central-1.rds.amazonaws.com"
BUNDLE = "/etc/pgsched/global-bundle.pem"
TOKEN = "t0ken-of-fifteen-minutes"
CALL = f"rds generate-db-auth-token --region eu-central-1 --port 5432 --hostname {HOST} --username worker"
BOTO3 = f"""
class Client:
    def generate_db_auth_token(self, DBHostname, Port, DBUsername):
        assert (DBHostname, Port, DBUsername) == ({HOST!r}, 5432, "worker")
        return {TOKEN!r}

def client(service, region_name):
    assert (service, region_name) == ("rds", "eu-central-1")
    return Client()
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def shell(containing: str) -> str:
    [found] = [block for block in blocks("sh") if containing in block]
    return found


def test_the_parameters_are_those_that_check_asks_for(own: OwnServer) -> None:
    [group] = blocks("ini")
    parameters = dict(line.split(" = ") for line in group.splitlines())
    assert set(parameters) | {"rds.force_ssl"} == set(re.findall(r"^\| `([a-z_.]+)` \|", PAGE, flags=re.MULTILINE))
    for name, value in {"max_locks_per_transaction": "10", "synchronous_commit": "off"}.items():
        own.server.sql(f"ALTER SYSTEM SET {name} = {value}")
    own.restart()
    told = " ".join(problem.cure for problem in check.check(own.dsn))
    assert "raise max_locks_per_transaction" in told
    assert "set synchronous_commit to on" in told
    for name, value in parameters.items():
        own.server.sql(f"ALTER SYSTEM SET {name} = {value}")
    own.restart()
    assert [problem.text for problem in check.check(own.dsn) if "fsync" not in problem.text] == []


def test_what_is_to_be_watched_is_there() -> None:
    named = set(re.findall(r"`(pgsched_\w+)`", PAGE.split("## 8.")[1]))
    assert named
    assert named <= set(
        re.findall(r"^\| `(pgsched_\w+)`", (ROOT / "docs/reference/metrics.md").read_text(), flags=re.MULTILINE)
    )


@pytest.fixture
def tls() -> Iterator[TlsServer]:
    if not installed():
        pytest.skip(MISSING)
    place = Path(tempfile.mkdtemp(prefix="pgsched-rds-"))
    place.chmod(0o711)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with closing(TlsServer(place, port, HOST)) as found:
        yield found
    shutil.rmtree(place)


def exported(block: str, bundle: Path) -> dict[str, str]:
    """What a shell exports in a block; the download is Amazon's part."""
    script = re.sub(r"^curl .*$", "", block, flags=re.MULTILINE).replace(BUNDLE, str(bundle))
    names = re.findall(r"^export (\w+)=", block, flags=re.MULTILINE)
    shown = " ".join(f'"${name}"' for name in names)
    done = subprocess.run(["sh", "-c", f"{script}\nprintf '%s\\0' {shown}"], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split("\0"), strict=False))


@pytest.mark.parametrize("way", ["command", "function"])
def test_the_steps_lead_to_a_supervisor_that_works(
    way: str, tls: TlsServer, pgsched_cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the roles on; what Amazon has and we have not is the role ``rds_iam``."""
    assert f"curl -fsS -o {BUNDLE} https://truststore.pki.rds.amazonaws.com/" in shell("curl")
    tls.server.sql("CREATE DATABASE work")
    work = tls.server.dsn_for("work")
    [command] = [line for line in shell("pgsched migrate").splitlines() if line]
    assert pgsched_cli.run(*shlex.split(command)[1:], environment={"PGSCHED_DSN": work}).code == 0
    tls.server.sql("CREATE ROLE rds_iam NOLOGIN")
    for block in (statements("")[0], statements("Supervisor")[0], *blocks("sql")):
        tls.server.sql(block, dsn=work)
    # The server takes a token for a password.
    tls.server.sql(f"ALTER ROLE worker PASSWORD '{TOKEN}'")

    environment = {"PGPORT": str(tls.port), "PGHOSTADDR": "127.0.0.1"}
    environment |= exported(shell("curl"), tls.authority.certificate)
    assert conninfo_to_dict(environment["PGSCHED_DSN"])["host"] == HOST
    if way == "command":
        aws = tmp_path / "aws"
        aws.write_text(f'#!/bin/sh\n[ "$*" = "{CALL}" ] && echo {TOKEN}\n')
        aws.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        environment |= exported(shell("generate-db-auth-token"), tls.authority.certificate)
    else:
        pgsched_cli.module("boto3", BOTO3)
        pgsched_cli.module("tokens", blocks("python")[0])
        [setting] = re.findall(r"`PGSCHED_PASSWORD_FROM=([^`]+)`", PAGE)
        environment["PGSCHED_PASSWORD_FROM"] = setting

    pgsched_cli.module("tasks", "from pgsched import App\napp = App()\n@app.task\ndef tick(): ...\n")
    checking, running = shell("pgsched run").splitlines()
    checked = pgsched_cli.run(*shlex.split(checking)[1:], environment=environment)
    assert checked.code == 0, checked
    assert {line.split(":")[1] for line in checked.out.splitlines()} == {" fsync is off"}
    arguments = [word.replace("work.tasks:app", "tasks:app") for word in shlex.split(running)[1:]]
    supervisor = pgsched_cli(*arguments, environment=environment)
    rows = Rows(tls.server, work)
    rows.add("tick")
    rows.all_ended(timeout=20)
    users = tls.server.sql(
        "SELECT DISTINCT usename, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
        " WHERE application_name LIKE 'pgsched%'"
    )
    assert users == [("worker", True)]
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait(10).code == 0, supervisor
    assert TOKEN not in supervisor.err
    eventually(lambda: not tls.server.backends(work))
