"""The table of faults beside the tests: each number has a row, each named test exists, and each test is named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

TESTS = ROOT / "tests"
# fmt: off
NUMBERS = [f"F{number:02}" for number in (
    1, 3, 4, 5, 7, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 33, 35, 36, 37, 39,
    40, 41, 43, 45, 46, 47, 48, 49, 50, 52, 54, 55, 56, 57, 58, 59, 61, 62, 63, 65, 66, 67, 68, 70, 71, 72, 74, 75,
    76, 77, 78, 80, 82, 83, 84, 86,
)]
# fmt: on
ROW = re.compile(r"^\| (F\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, set[str], str]]:
    """Number, tests and answer."""
    text = (TESTS / "faults/README.md").read_text()
    return [
        (number, set(re.findall(r"`([^`]+::\w+)`", tests)), answer) for number, _, tests, answer in ROW.findall(text)
    ]


def functions_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_f"):
            yield node.name


def numbers_of(test: str) -> set[str]:
    """F43 and F45 for ``test_f43_f45_what_it_says``."""
    [leading] = re.findall(r"::test((?:_f\d\d)+)_", test)
    return set(leading.upper().strip("_").split("_"))


NAMED = {
    f"{path.relative_to(TESTS)}::{name}"
    for path in TESTS.rglob("test_*.py")
    for name in functions_in(path)
    if re.match(r"test_f\d\d_", name)
}


def test_every_fault_has_one_row_in_order() -> None:
    assert [number for number, _, _ in rows()] == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_names_exactly_the_tests_of_its_number(number: str) -> None:
    [tests] = [tests for found, tests, _ in rows() if found == number]
    assert tests
    assert tests == {test for test in NAMED if number in numbers_of(test)}


def test_no_test_has_another_number() -> None:
    assert {number for test in NAMED for number in numbers_of(test)} == set(NUMBERS)


def test_a_limit_that_is_linked_is_there() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = {anchor for _, _, answer in rows() for anchor in re.findall(r"docs/limits\.md#([\w-]+)", answer)}
    assert linked
    assert linked == anchors
