"""The statements: one a file, each used by name in one place, each with a head that says what it relies on."""

import ast
import re
from pathlib import Path

import pytest

from pgsched.store.sql import load
from tests.support import ROOT

STORE = ROOT / "pgsched/store"
FILES = sorted((STORE / "sql").glob("*.sql"))


def strings(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


NAMED = {string for path in STORE.glob("*.py") for string in strings(path)}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_statement_is_loaded_by_its_name_and_used(path: Path) -> None:
    assert load(path.stem) == path.read_bytes()
    assert path.stem in NAMED, "nobody loads this file"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_statement_says_what_it_is_for_first(path: Path) -> None:
    head = re.match(r"(--.*\n)+", path.read_text())
    assert head
    if not path.stem.startswith(("adopt_", "schema_")) and re.search(r"scheduled_tasks|pgsched_", path.read_text()):
        assert re.search(r"\bindex|\bkeys?\b|catalogue", head[0], re.IGNORECASE), "name the index"
        assert re.search(r"\block(s|ed)?\b|catalogue|waits", head[0], re.IGNORECASE), "name the locks"


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_holds_one_statement(path: Path) -> None:
    code = re.sub(r"--.*", "", path.read_text())
    code = re.sub(r"\$\$.*?\$\$|'[^']*'", "", code, flags=re.DOTALL)
    assert code.strip().rstrip(";").count(";") == 0


@pytest.mark.parametrize("path", sorted(STORE.glob("*.py")), ids=lambda path: path.stem)
def test_no_statement_stands_in_python(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    executed = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("execute")]
    assert [
        call.lineno for call in executed if isinstance(call.args[0], ast.Constant | ast.JoinedStr | ast.BinOp)
    ] == []


TWINS = {
    "settle_completed": (
        [", $7::integer[]", ", partition"],
        ["pgsched_partition(task.id, task.unique_key) = verdict.partition\n      AND "],
    ),
    "claim": (
        [
            *(",\n                $11::integer[]", ", want.partition", ", asked.partition"),
            *(",\n       NULL::integer AS partition", ", partition"),
        ],
        [
            "pgsched_partition(task.id, task.unique_key) = want.partition\n          AND ",
            "pgsched_partition(task.id, task.unique_key) = asked.partition\n      AND ",
        ],
    ),
}
"""What only the statement of a bound supervisor says: where the partition goes, and where it is compared."""


@pytest.mark.parametrize("name", TWINS)
def test_the_statement_of_a_bound_supervisor_differs_in_nothing_but_the_partition(name: str) -> None:
    """They are two because a plan that may leave partitions out has to compare the number of each row."""
    both, bound = (re.sub(r"--.*\n", "", load(each).decode()) for each in (name, f"{name}_in_partitions"))
    words, guards = TWINS[name]
    for each in (*words, *guards):
        assert each in bound
        bound = bound.replace(each, "")
    assert bound == both


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        load("nonsense")
