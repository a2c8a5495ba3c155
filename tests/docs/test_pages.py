"""The pages with examples, each done by a reader who types all of it."""

import re
from pathlib import Path

import pytest

from tests.pages import Reader, blocks, matches
from tests.support import ROOT

DOCS = ROOT / "docs"
TYPED = ("tutorial", "tasks", "enqueue")
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "benchmarks")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", TYPED)
def test_a_page_does_what_it_says(page: str, reader: Reader) -> None:
    reader.type(". .venv/bin/activate")
    reader.follow(blocks((DOCS / f"{page}.md").read_text()))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a\nc\n", False),
        ("…\nc\n", "a\nb\nc\n", True),
        ("…\nc\n", "c\n", True),
        ("…\nc\n", "c\nd\n", False),
        ("…\n", "", True),
        ("a.c\n", "abc\n", False),
    ],
)
def test_what_a_page_shows_is_compared(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


@pytest.mark.parametrize(
    "page",
    [
        "```sh\nfalse\n```\n",
        "```sh\necho a\n```\n\n```text\nb\n```\n",
        "```python\nprint(1)\n```\n",
        "```c\nint a;\n```\n",
    ],
)
def test_a_page_that_does_not_do_what_it_says_is_found_out(page: str, reader: Reader) -> None:
    with pytest.raises(AssertionError):
        reader.follow(blocks(page))


def test_the_tutorial_shows_what_is_printed() -> None:
    kinds = [block.kind for block in blocks((DOCS / "tutorial.md").read_text())]
    assert kinds.count("sh") >= 20
    assert kinds.count("text") >= 15


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_has_every_page() -> None:
    linked = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#:]+)", (DOCS / "README.md").read_text())}
    assert [path.name for path in PAGES if path.resolve() not in linked | {(DOCS / "README.md").resolve()}] == []
