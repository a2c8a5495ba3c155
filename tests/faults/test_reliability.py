"""The promises beside the tests: each has one that is there."""

import ast
import re

import pytest

from tests.support import ROOT

ROW = re.compile(r"^\| (?!promise|limit|-)([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS: list[tuple[str, str]] = ROW.findall((ROOT / "docs/reliability.md").read_text())


def test_there_are_promises() -> None:
    assert len(ROWS) >= 19


@pytest.mark.parametrize(("sentence", "shown"), ROWS, ids=[sentence[:40] for sentence, _ in ROWS])
def test_a_promise_is_shown_by_tests_that_are_there(sentence: str, shown: str) -> None:
    named = re.findall(r"`([^`:]+)(?:::(\w+))?`", shown)
    assert named, sentence
    for path, name in named:
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions if name else any(function.startswith("test_") for function in functions)
