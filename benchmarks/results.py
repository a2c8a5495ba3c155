"""What a scenario yields, and how it is told: medians and spread over repetitions, as a table and as JSON."""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import median
from benchmarks.scenario import Result
from pgsched.quantities import available_cpus


class Figure(NamedTuple):
    """One figure over all runs."""

    name: str
    value: float | None
    """The median of those runs that have it."""
    unit: str
    min: float | None
    max: float | None
    runs: list[float | None]
    series: Sequence[tuple[float, float]] = ()
    """Of the last run that has one."""


def summarise(runs: Sequence[Sequence[Result]]) -> list[Figure]:
    """Each figure over the runs, in the order of the first run that has it."""
    units = {result.name: result.unit for run in runs for result in run}
    values = [{result.name: result.value for result in run} for run in runs]
    series = {result.name: result.series for run in runs for result in run if result.series}
    figures = []
    for name, unit in units.items():
        each = [run.get(name) for run in values]
        known = [value for value in each if value is not None]
        spread = (median(known), min(known), max(known)) if known else (None, None, None)
        figures.append(Figure(name, spread[0], unit, spread[1], spread[2], each, series.get(name, ())))
    return figures


def shown(value: float | None) -> str:
    """A number with as many digits as matter."""
    if value is None:
        return "not available"
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 3
    return f"{value:,.{digits}f}"


def table(figures: Sequence[Figure]) -> list[str]:
    """One line a figure."""
    width = max((len(figure.name) for figure in figures), default=0)
    lines = []
    for figure in figures:
        line = f"{figure.name:{width}} {shown(figure.value):>13} {figure.unit:4}"
        if figure.value is not None and len(figure.runs) > 1:
            line += f" ({shown(figure.min)} to {shown(figure.max)} in {len(figure.runs)} runs)"
        lines.append(line.rstrip())
    return lines


def document(scenario: str, measured_on: Mapping[str, object], figures: Sequence[Figure]) -> str:
    """The JSON of a scenario: figures, and what they were measured on."""
    results = [figure._asdict() for figure in figures]
    for result in results:
        if not result["series"]:
            del result["series"]
    return json.dumps({"scenario": scenario, **measured_on, "results": results}, indent=1) + "\n"


def surroundings(postgres: str, settings: Mapping[str, str], *, quick: bool) -> dict[str, object]:
    """What figures are measured on."""
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "postgres": postgres,
        "settings": dict(settings),
        "cpus": available_cpus(),
        "quick": quick,
    }


def _commit() -> str | None:
    """What was measured; None outside of a clone."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
