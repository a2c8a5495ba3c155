"""Turns the JSON files of ``--json`` into a page: what must hold and whether it does, plots, all figures as tables."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.goals import GOALS
from benchmarks.registry import SCENARIOS
from benchmarks.results import Figure, shown
from pgsched.errors import UsageError

PAGE = "benchmarks.md"
CLAIM = re.compile(r"(?P<variant>\w+)_(?P<clients>\d+)x(?P<batch>\d+)_(?P<measure>\w+)")


class Document(NamedTuple):
    """One file."""

    scenario: str
    measured_on: str
    figures: dict[str, Figure]


def report(paths: Iterable[Path], directory: Path) -> Path:
    """Write the page and its plots into a directory, and return the page's path.

    :param paths: files that ``--json`` has written, or directories of such.
    :raises UsageError: a file is none of ours, or matplotlib is not installed.
    """
    documents = sorted((read(path) for path in _files(paths)), key=lambda each: _place(each.scenario))
    if not documents:
        raise UsageError("report: there is no JSON file: give files, or a directory, that --json has written")
    try:
        from benchmarks import plots
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise UsageError("report needs matplotlib: pip install -e '.[bench]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {each.scenario: plots.draw(each.scenario, each.figures, directory) for each in documents}
    path = directory / PAGE
    path.write_text(page(documents, drawn))
    return path


def read(path: Path) -> Document:
    """Read one file.

    :raises UsageError: it is none of ours.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        figures = {result["name"]: Figure(**result) for result in content["results"]}
        return Document(str(content["scenario"]), _measured_on(content), figures)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a file that --json has written: {type(error).__name__}: {error}") from None


def page(documents: Sequence[Document], drawn: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The page as Markdown.

    :param drawn: file and title of each scenario's plots.
    """
    measured = {each.scenario: each.figures for each in documents}
    [(usual, _)] = Counter(each.measured_on for each in documents).most_common(1)
    lines = [
        "# Benchmarks",
        "",
        "Medians, and the least and the most of the runs. `python -m benchmarks list` names all.",
        "",
        usual,
    ]
    if any(each.measured_on != usual for each in documents):
        lines += ["", "What was measured elsewhere says so in its own section."]
    lines += ["", "## What must hold", ""]
    # A soak takes its own time, and is no part of `all`.
    goals = [goal for goal in GOALS if goal.scenario != "soak" or goal.scenario in measured]
    lines += _table(("result", "goal", "measured", ""), [goal.row(measured) for goal in goals])
    for each in documents:
        lines += ["", f"## {each.scenario}", ""]
        if each.scenario in SCENARIOS:
            about = SCENARIOS[each.scenario].about
            lines += [f"{about[0].upper()}{about[1:]}.", ""]
        if each.measured_on != usual:
            lines += [each.measured_on, ""]
        for file, title in drawn.get(each.scenario, ()):
            lines += [f"![{title}]({file})", ""]
        lines += _claim_tables(each.figures) if each.scenario == "claim" else _figures_table(each.figures)
    return "\n".join(lines) + "\n"


def _figures_table(figures: Mapping[str, Figure]) -> list[str]:
    head = ("result", "median", "least", "most", "unit", "runs")
    rows = [
        (f"`{name}`", shown(each.value), shown(each.min), shown(each.max), each.unit, str(len(each.runs)))
        for name, each in figures.items()
    ]
    return _table(head, rows)


def _claim_tables(figures: Mapping[str, Figure]) -> list[str]:
    """One table a measure, with a column for each variant: all in one list nobody could compare."""
    matches = [(match, figure) for name, figure in figures.items() if (match := CLAIM.fullmatch(name))]
    variants = list(dict.fromkeys(match["variant"] for match, _ in matches))
    lines = []
    for measure in dict.fromkeys(match["measure"] for match, _ in matches):
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for match, figure in matches:
            if match["measure"] == measure:
                rows.setdefault((match["clients"], match["batch"]), {})[match["variant"]] = shown(figure.value)
        cells = [(*place, *(row.get(variant, "") for variant in variants)) for place, row in rows.items()]
        lines += [f"`{measure}`", "", *_table(("clients", "batch", *variants), cells), ""]
    return lines[:-1]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body]


def _measured_on(content: Mapping[str, Any]) -> str:
    settings = ", ".join(f"`{name}` {value}" for name, value in content["settings"].items())
    commit = f"commit {content['commit']}" if content["commit"] else "no commit"
    quick = "**A quick run, only to see that it runs: these figures say nothing.** " if content["quick"] else ""
    versions = f"Python {content['python']} and PostgreSQL {content['postgres']}"
    return f"{quick}Measured on {content['cpus']} CPUs with {versions}, {commit}; {settings}."


def _files(paths: Iterable[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]


def _place(scenario: str) -> int:
    return list(SCENARIOS).index(scenario) if scenario in SCENARIOS else len(SCENARIOS)
