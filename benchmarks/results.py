"""What a scenario yields, and how it is printed: medians and spread over repetitions."""

import json
import os
import platform
import statistics
import subprocess
from typing import NamedTuple


class Result(NamedTuple):
    """One figure of one run."""

    name: str
    value: float
    unit: str


def summarise(runs: list[list[Result]]) -> list[dict[str, object]]:
    """Median, minimum and maximum of each figure over the runs."""
    summary: list[dict[str, object]] = []
    for figures in zip(*runs, strict=True):
        values = [figure.value for figure in figures]
        summary.append(
            {
                "name": figures[0].name,
                "value": statistics.median(values),
                "unit": figures[0].unit,
                "min": min(values),
                "max": max(values),
            }
        )
    return summary


def document(scenario: str, postgres: str, settings: dict[str, str], results: list[dict[str, object]]) -> str:
    """The JSON of a scenario: figures, and what they were measured on."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return json.dumps(
        {
            "scenario": scenario,
            "commit": commit.stdout.strip() or None,
            "python": platform.python_version(),
            "postgres": postgres,
            "settings": settings,
            "cpus": len(os.sched_getaffinity(0)),
            "results": results,
        },
        indent=1,
    )
