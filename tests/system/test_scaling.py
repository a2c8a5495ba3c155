"""docs/scaling.md: its commands and its program are run as they stand there, and what it refers to is there."""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT, Server, database_of, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

PAGE = (ROOT / "docs/scaling.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
RUNS = [command for command in COMMANDS if command.startswith("pgsched run ")]
CUSTOMERS = ["ada", "bert", "cleo", "dora"]
"""Some for each of the two databases."""


@pytest.fixture
def databases(server: Server, dsn: str, template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the page calls DATABASE_0 and DATABASE_1."""
    other = server.create(template)
    for number, each in enumerate((dsn, other)):
        monkeypatch.setenv(f"DATABASE_{number}", each)
    yield [dsn, other]
    server.drop(other)


def arguments(command: str) -> list[str]:
    program, *found = (os.path.expandvars(word) for word in shlex.split(command))
    assert program == "pgsched"
    # Nobody knows which ports are free here.
    return [re.sub(r"^127\.0\.0\.1:\d+$", "127.0.0.1:0", word) for word in found]


def test_the_page_has_what_is_tested_here() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python"}
    assert len(RUNS) == 5
    assert len(COMMANDS) == 9


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in RUNS])
def test_a_command_of_the_page_runs(command: str, databases: list[str], pgsched_cli: CommandLine) -> None:
    ended = pgsched_cli.run(*arguments(command))
    assert ended.code in ((0, 1) if command == "pgsched check" else (0,)), ended


@pytest.mark.parametrize("command", RUNS)
def test_a_supervisor_of_the_page_starts(command: str, databases: list[str], pgsched_cli: CommandLine) -> None:
    started = pgsched_cli(*arguments(command))
    started.wait_for(" registered ")
    started.signal(signal.SIGTERM)
    assert started.wait().code == 0, started


def test_each_customer_has_a_database(
    databases: list[str], server: Server, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    program: dict[str, object] = {}
    exec(next(block for kind, block in BLOCKS if kind == "python"), program)
    archive, database_of_customer = program["archive"], program["database_of"]
    assert callable(archive)
    assert callable(database_of_customer)
    for command in RUNS:
        if "$DATABASE" in command:
            pgsched_cli(*arguments(command))
    wanted: dict[str, set[str]] = {dsn: set() for dsn in databases}
    for customer in CUSTOMERS:
        path = tmp_path / customer
        path.write_text(customer)
        archive(customer, str(path))
        wanted[database_of_customer(customer)].add(str(path))
    assert all(wanted.values()), "the customers do not try both"
    for dsn, paths in wanted.items():
        rows = Rows(server, dsn)
        eventually(lambda rows=rows: rows.count("status = 'completed'") > 0, "somebody serves it")  # type: ignore[misc]
        rows.all_ended()
        done = server.sql("SELECT payload->>'path', status FROM scheduled_tasks", dsn=dsn)
        assert set(done) == {(path, "completed") for path in paths}, database_of(dsn)


def test_what_the_page_refers_to_is_there() -> None:
    tests = re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?`", PAGE)
    assert len(tests) == 8
    for file, name in tests:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text() or not name, name
    for target, anchor in re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", PAGE):
        linked = ROOT / "docs" / target
        headings = {
            heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
        }
        assert not anchor or anchor in headings, anchor
