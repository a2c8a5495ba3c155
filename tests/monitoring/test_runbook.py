"""The runbook's commands: each is run, as it stands there, against a database with something to see."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from tests.pages import blocks, queries, sections
from tests.support import ROOT, Server

PAGE = (ROOT / "docs/runbook.md").read_text()
COMMANDS = sorted({line for block in blocks(PAGE, "sh") for line in block.text.splitlines()})
QUERIES = sorted({query for block in blocks(PAGE, "sql") for query in queries(block)})
INLINE = sorted(set(re.findall(r"`(pgsched [^`]+)`", PAGE)))


@pytest.fixture
def seen(server: Server, dsn: str) -> int:
    """A database with a task that has failed; its id."""
    insert = "INSERT INTO scheduled_tasks (task_type, payload, run_at, status) VALUES ('a', '{}', now(), 'failed')"
    return int(server.value(f"{insert} RETURNING id", dsn=dsn))


def test_there_are_blocks_of_both_kinds() -> None:
    assert {block.kind for block in blocks(PAGE)} == {"sh", "sql"}
    assert len(COMMANDS) >= 4
    assert len(QUERIES) >= 8


@pytest.mark.parametrize("command", sorted({*COMMANDS, *INLINE}))
def test_a_command_of_the_page_runs(command: str, dsn: str, seen: int) -> None:
    program, *arguments = shlex.split(command.replace("ID", str(seen)).replace("NAME", "a"))
    assert program == "pgsched"
    if arguments == ["show"]:
        arguments.append(str(seen))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    ended = subprocess.run(
        [sys.executable, "-m", "pgsched", *arguments],
        env={**inherited, "PGSCHED_DSN": dsn},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode in ((0, 1) if arguments == ["check"] else (0,)), ended.stderr
    assert ended.stderr == ""


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_page_runs(query: str, connect: Callable[..., psycopg.Connection]) -> None:
    connect().execute(query.encode())


def test_every_link_within_the_page_leads_somewhere() -> None:
    headings = {heading.lower() for heading in sections(PAGE)}
    assert set(re.findall(r"\(#(\w+)\)", PAGE)) <= headings
