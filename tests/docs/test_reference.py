"""The pages of reference beside the program: nothing is missing, and nothing is there that is not."""

import inspect
import re
import urllib.request
from collections.abc import Callable, Iterable, Iterator

import click
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pgsched as pgsched_package
from pgsched import App, Enqueuer, Retry, Task, TaskContext
from pgsched.cli import guard
from pgsched.cli.commands import pgsched
from pgsched.errors import ExitCode
from tests.pages import blocks, queries, rows, sections
from tests.support import ROOT, Server, eventually
from tests.system.conftest import CommandLine

PLACE = ROOT / "docs/reference"
OPTIONS = sections((PLACE / "options.md").read_text())
PYTHON = sections((PLACE / "python.md").read_text())
CODES = (PLACE / "exit-codes.md").read_text()
METRICS = (PLACE / "metrics.md").read_text()
SQL = (PLACE / "sql.md").read_text()
EVERYWHERE = ("--dsn", "--password-command", "--password-from", "--no-embedded", "--db-timeout")
TYPED_ONLY = "*Typed only.*"
TABLES = ("scheduled_tasks", "pgsched_failures", "pgsched_supervisors")


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands by what is typed, those of groups within the group too."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands(pgsched))
LIKE_RUN = [name for name in COMMANDS if name.startswith("systemd ")]


def options_of(command: click.Command, *, common: bool) -> set[tuple[str, str, bool]]:
    """Of each option what the page says too: how it is typed, its default, whether it has a variable."""
    return {
        (f"{option.opts[0]} {option.metavar or ''}".strip(), default(option), option.envvar is not None)
        for option in command.params
        if isinstance(option, click.Option) and (option.opts[0] in EVERYWHERE) is common
    }


def default(option: click.Option) -> str:
    said = re.search(r"\[default: (.*)\]", option.help or "")
    if said is not None and said[1].startswith("libpq's environment"):
        return "none"
    return said[1] if said else "required" if option.required else "off" if option.is_flag else "none"


def described(text: str) -> set[tuple[str, str, bool]]:
    found = rows(text)
    assert all(meaning for _, _, meaning in found)
    return {(name.strip("`"), default, TYPED_ONLY not in meaning) for name, default, meaning in found}


def test_every_command_has_a_section() -> None:
    assert set(OPTIONS) == {"", "Every command", *COMMANDS, "Variables without an option"}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in LIKE_RUN])
def test_every_option_is_there_with_its_default_and_no_other(name: str) -> None:
    assert described(OPTIONS[name]) == options_of(COMMANDS[name], common=False)
    assert described(OPTIONS["Every command"]) == options_of(COMMANDS[name], common=True)
    assert f"`pgsched {name}" in OPTIONS[name]


@pytest.mark.parametrize("name", LIKE_RUN)
def test_what_has_the_options_of_run_has_these_besides(name: str) -> None:
    all_options = options_of(COMMANDS[name], common=False) | options_of(COMMANDS[name], common=True)
    of_run = described(OPTIONS["run"]) | described(OPTIONS["Every command"])
    assert described(OPTIONS[name]) == all_options - of_run


def test_every_variable_without_an_option_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "pgsched").rglob("*.py"))
    known = {
        str(option.envvar)
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option)
    }
    assert {row[0].strip("`") for row in rows(OPTIONS["Variables without an option"])} == (
        set(re.findall(r"\"(PGSCHED_[A-Z_]+)\"", sources)) - known
    )


def test_every_exit_code_is_there() -> None:
    names = ("INTERNAL", "OUTPUT", "INTERRUPTED", "BROKEN_PIPE")
    ours = {name: getattr(guard, name) for name in names}
    assert {name.strip("`"): int(code) for code, name, *_ in rows(CODES)} == {
        **{code.name: int(code) for code in ExitCode},
        **ours,
    }


@pytest.mark.parametrize(
    ("part", "called"),
    [("App", App), ("app.task", App.task), ("Retry", Retry), ("task.options", Task.options)],
)
def test_every_parameter_is_there_with_its_default(part: str, called: Callable[..., object]) -> None:
    parameters = inspect.signature(called).parameters.values()
    assert [(name.strip("`"), default.strip("`")) for name, default, _ in rows(PYTHON[part])] == [
        (parameter.name, repr(parameter.default))
        for parameter in parameters
        if parameter.name not in ("self", "function")
    ]


def test_all_that_the_package_gives_is_there() -> None:
    text = "".join(PYTHON.values())
    assert [
        name for name in pgsched_package.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)
    ] == []
    raised = {name for name in pgsched_package.__all__ if name.endswith("Error")} - {"PgschedError"}
    assert names(rows(PYTHON["Errors"])) == raised
    attributes = {*TaskContext.__slots__, *vars(TaskContext)}
    assert {name.removesuffix("()") for name in names(rows(PYTHON["current_task"]))} == {
        name for name in attributes if not name.startswith("_")
    }


@pytest.mark.parametrize("kind", [Task, Enqueuer])
def test_every_way_to_enqueue_is_there(kind: type) -> None:
    ways = re.findall(r"task\.(enqueue\w*)\(", PYTHON["Enqueue"])
    assert set(ways) == {name for name in vars(kind) if name.startswith("enqueue")}


def test_what_a_supervisor_shows_is_there(pgsched_cli: CommandLine) -> None:
    """The other way round, that every metric of the page can be shown, is the unit floor's."""
    pgsched_cli.module("nothing", "from pgsched import App\napp = App()\n@app.task\ndef rest() -> None: ...\n")
    assert pgsched_cli.run("enqueue", "rest").code == 0
    running = pgsched_cli("run", "nothing:app", "--processes", "1")
    address = running.wait_for(r"metrics_served address=(\S+)")[1]
    shown = eventually(lambda: families(address, at_least="scheduler_task_latency_seconds"), timeout=30)
    assert shown
    assert shown <= {(name.strip("`"), kind) for name, kind, *_ in rows(METRICS)}


def families(address: str, at_least: str) -> set[tuple[str, str]] | None:
    """Names and types of what is at ``/metrics``, None before the one that is waited for."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        found = list(text_string_to_metric_families(answer.read().decode()))
    names = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in found
        if not family.name.startswith(("process_", "python_"))
    }
    return names if any(family.name == at_least and family.samples for family in found) else None


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_there_with_its_type(server: Server, dsn: str, table: str) -> None:
    columns = server.sql(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        table,
        dsn=dsn,
    )
    assert [(row[0].strip("`"), row[1]) for row in rows(sections(SQL)[table])] == columns


def test_the_defaults_and_what_an_insert_may_fill_are_there(server: Server, dsn: str) -> None:
    page = {row[0].strip("`"): row for row in rows(sections(SQL)["scheduled_tasks"])}
    catalogue = server.sql(
        "SELECT attname, attnotnull, substring(pg_get_expr(adbin, adrelid) FROM '^''?(.*?)''?(::[a-z ]+)?$')"
        " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = 'scheduled_tasks'::regclass AND attnum > 0",
        dsn=dsn,
    )
    for name, required, default in catalogue:
        stated = page[name][2].strip("`").replace("'::regclass)", "')")
        expected = "required" if required and default is None else default or "none"
        assert stated == expected.replace("'::regclass)", "')"), name
    granted = re.search(r"GRANT INSERT \(([^)]*)\)", (ROOT / "docs/security.md").read_text())
    assert granted
    assert {name for name, row in page.items() if row[3] == "yes"} == set(granted[1].split(", "))


def test_every_function_is_there(server: Server, dsn: str) -> None:
    functions = server.sql("SELECT DISTINCT proname FROM pg_proc WHERE proname LIKE 'pgsched%'", dsn=dsn)
    assert names(rows(sections(SQL)["Functions"])) == {name for (name,) in functions}


def names(table: Iterable[list[str]]) -> set[str]:
    return {row[0].strip("`") for row in table}


def test_its_statements_run_in_their_order(connect: Callable[..., psycopg.Connection]) -> None:
    connection = connect()
    for block in blocks(SQL, "sql"):
        for query in queries(block):
            connection.execute(query.encode())
