"""What keeps the house easy to walk through: sizes, docstrings, one word for each thing, packaged files.

Reads the sources; runs nothing of them.
"""

import ast
import configparser
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from pgsched.ops import telemetry
from tests.pages import rows, sections
from tests.support import ROOT

PACKAGE = ROOT / "pgsched"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_LINES = 350
FUNCTION_LINES = 50

# docs/architecture.md, "Words": a task is no job, a supervisor no node and no master, a lease no heartbeat.
BANNED = re.compile(r"\b(jobs?|heartbeats?|nodes?|masters?)\b", re.IGNORECASE)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_a_module_fits_the_eye(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES] == []


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert len(docstring.splitlines()) <= 12, "a page is not a sentence: move it to docs/"


def _words(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".py":
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
                    yield token.start[0], token.string
    else:
        yield from enumerate(path.read_text().splitlines(), 1)


@pytest.mark.parametrize("path", MODULES, ids=names(MODULES))
def test_what_others_have_written_is_never_code(path: Path) -> None:
    """Payloads, results and frames are JSON; nothing that reads code is used at all."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not imported & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code"}
    assert not called & {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("suffix", [".py", ".sql"])
def test_each_thing_has_one_word(suffix: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in sorted(PACKAGE.rglob(f"*{suffix}"))
        for line, text in _words(path)
        for match in BANNED.finditer(text.replace("_", " "))
    ]
    assert found == []


FLOORS = ("rules", "store", "pool", "supervisor")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def test_the_architecture_names_only_modules_that_are_there() -> None:
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".sql")}
    known = files | {Path(name).name for name in files}
    assert [name for name in re.findall(r"`([\w/]+\.(?:py|sql))`", ARCHITECTURE) if name not in known] == []


@pytest.mark.parametrize("floor", FLOORS)
def test_the_architecture_says_what_each_module_is_for(floor: str) -> None:
    names = [path.name for path in (PACKAGE / floor).glob("*.py") if path.name != "__init__.py"]
    assert [name for name in names if not re.search(rf"`({floor}/)?{name}`", ARCHITECTURE)] == []


TELLING = ("emit", "event", "line", "_on_event")


def _events() -> Iterator[str]:
    """The names of all events: the text that a call which tells one has, or that stands in telemetry's tables."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "events.py":
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                yield from (text for text in texts if called in TELLING and isinstance(text, str))
    for name, _ in telemetry._EVENTS.values():
        yield name
    yield from telemetry._POOL_LEVELS


def test_every_event_is_in_the_page_about_observing() -> None:
    page = sections((ROOT / "docs/observing.md").read_text())["Logs"]
    told = set(_events())
    assert {"registered", "worker_ended", "log_lines_dropped", "task_lost", "database_back"} <= told
    assert set(re.findall(r"`([a-z_]+)`", "".join(row[1] for row in rows(page)))) == told


def test_every_file_that_is_no_module_is_packaged() -> None:
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, lines in configuration["options.package_data"].items()
        for pattern in lines.split()
    ]
    files = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert "pgsched/py.typed" in files
    assert [name for name in files if not any(fnmatch(name, pattern) for pattern in patterns)] == []
