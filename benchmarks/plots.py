"""Draws figures as SVG with matplotlib: bars with the spread over the runs, lines for ``claim`` and for what was
watched over time."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.results import Figure, shown

STYLE: Any = {
    # Text as text and fixed ids, so that a drawing changes only where a figure does.
    "svg.fonttype": "none",
    "svg.hashsalt": "pgsched",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLUMNS = 4
COLOURS = ("#1f6feb", "#d1742f", "#3f8f4f", "#8250df")


class Chart(NamedTuple):
    """Bars for those results of a scenario whose whole name matches."""

    file: str
    scenario: str
    pattern: str
    """Its first group names the bar."""
    title: str
    log: bool = False
    line: tuple[float, str] | None = None
    """Where a line is drawn, and what it is."""


CHARTS = (
    Chart(
        "drain",
        "drain",
        r"((?:floor_)?tasks)_per_s",
        "Draining tasks that do nothing, tasks a second",
        line=(11_000, "the article: 11,000"),
    ),
    Chart("paced", "paced", r"(poll_p50|start_p50|start_p99)_ms", "At a steady rate, milliseconds"),
    Chart("latency", "latency", r"((?:pickup|scheduled)_p\d+)_ms", "From commit to first line, milliseconds"),
    Chart("cpu", "cpu", r"speed_vs_pool_(\w+)", "CPU work, speed against multiprocessing.Pool", line=(1.0, "the Pool")),
    Chart(
        "horizon",
        "horizon",
        r"((?:first|last)_slice_tasks_per_s(?:_without)?)",
        "With an old snapshot and without, tasks a second",
    ),
    Chart(
        "backlog",
        "backlog",
        r"((?:backlog15_)?ratio_to_empty_\w+)",
        "A claim against one from an empty table",
        line=(1.5, "goal"),
    ),
    Chart("scale", "scale", r"tasks_per_s_(\d+)", "Supervisors on one table, tasks a second"),
    Chart("enqueue", "enqueue", r"(\w+)_tasks_per_s", "Queueing, tasks a second", log=True),
    Chart(
        "recovery",
        "recovery",
        r"(worker_requeue|slot_ready|restart_takeover)_ms",
        "After SIGKILL, milliseconds",
        log=True,
    ),
    Chart("peers-drain", "peers", r"(\w+)_drain_tasks_per_s", "Draining tasks that do nothing, tasks a second"),
    Chart("peers-latency", "peers", r"(\w+_p(?:50|99))_ms", "From commit to first line, milliseconds", log=True),
    Chart("peers-cpu", "peers", r"(\w+)_cpu_tasks_per_s", "CPU work, tasks a second"),
    Chart(
        "peers-recovery",
        "peers",
        r"(\w+)_recovery_s",
        "SIGKILL of a worker, seconds until the task runs again",
        log=True,
    ),
)


def draw(scenario: str, figures: Mapping[str, Figure], directory: Path) -> list[tuple[str, str]]:
    """Draw all charts of a scenario; return name of the file and title of each."""
    drawn = []
    with matplotlib.rc_context(STYLE):
        if scenario == "claim" and (series := claim_series(figures)):
            _save(_claim(series), directory / "claim.svg")
            drawn.append(("claim.svg", "Claims a second"))
        if watched := {name: figure for name, figure in figures.items() if figure.series}:
            _save(_over_time(watched, figures), directory / f"{scenario}-series.svg")
            drawn.append((f"{scenario}-series.svg", "Over time, in minutes"))
        for chart in CHARTS:
            if chart.scenario == scenario and (bars := bars_of(chart.pattern, figures)):
                _save(_bars(chart, bars), directory / f"{chart.file}.svg")
                drawn.append((f"{chart.file}.svg", chart.title))
    return drawn


def bars_of(pattern: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures that are available and whose name matches, by what the bar is called."""
    matches = ((re.fullmatch(pattern, name), figure) for name, figure in figures.items())
    return {match[1].replace("_", " "): figure for match, figure in matches if match and figure.value is not None}


def claim_series(figures: Mapping[str, Figure]) -> dict[int, dict[str, dict[int, float]]]:
    """Claims a second by number of clients, variant and size of the batch."""
    series: dict[int, dict[str, dict[int, float]]] = {}
    for name, figure in figures.items():
        match = re.fullmatch(r"(\w+)_(\d+)x(\d+)_claims_per_s", name)
        if match and figure.value is not None:
            series.setdefault(int(match[2]), {}).setdefault(match[1], {})[int(match[3])] = figure.value
    return series


def _bars(chart: Chart, bars: Mapping[str, Figure]) -> Canvas:
    canvas = Canvas(figsize=(8, 0.9 + 0.4 * len(bars)), layout="constrained")
    axes = canvas.subplots()
    values = [figure.value or 0.0 for figure in bars.values()]
    spread = [
        [value - (figure.min or 0.0) for value, figure in zip(values, bars.values(), strict=True)],
        [(figure.max or 0.0) - value for value, figure in zip(values, bars.values(), strict=True)],
    ]
    drawn = axes.barh(list(bars), values, xerr=spread, color=COLOURS[0], ecolor="#666666", capsize=3, height=0.6)
    axes.bar_label(drawn, labels=[f" {shown(value)}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if chart.log:
        # A bar has to begin somewhere; a power of ten below the shortest makes them comparable.
        axes.set_xscale("log")
        shortest = min((value for value in values if value > 0), default=1.0)
        axes.set_xlim(10 ** math.floor(math.log10(shortest / 2)), max(values) * 4)
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    if chart.line is not None:
        value, name = chart.line
        axes.axvline(value, color="#666666", linestyle="--", linewidth=1)
        axes.annotate(name, (value, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set_title(chart.title, loc="left", pad=18)
    return canvas


def _claim(series: Mapping[int, Mapping[str, Mapping[int, float]]]) -> Canvas:
    canvas = Canvas(figsize=(4 * len(series), 4), layout="constrained")
    row = canvas.subplots(1, len(series), sharey=True, squeeze=False)[0]
    for axes, (clients, variants) in zip(row, series.items(), strict=True):
        _lines(axes, variants)
        axes.set_title(f"{clients} client{'s' if clients > 1 else ''}", loc="left")
    row[0].set_ylabel("claims a second")
    row[0].legend(frameon=False)
    return canvas


def _over_time(watched: Mapping[str, Figure], figures: Mapping[str, Figure]) -> Canvas:
    """Small multiples, each from zero on: so what grows is seen to grow, and noise is seen as noise."""
    rows = math.ceil(len(watched) / COLUMNS)
    canvas = Canvas(figsize=(3.2 * COLUMNS, 1.6 * rows), layout="constrained")
    places = canvas.subplots(rows, COLUMNS, squeeze=False, sharex=True).flat
    warm_up = figures.get("warm_up_s")
    for (name, figure), axes in zip(watched.items(), places, strict=False):
        times, values = zip(*figure.series, strict=True)
        axes.plot([seconds / 60 for seconds in times], values, color=COLOURS[0], linewidth=1)
        if warm_up is not None and warm_up.value is not None:
            axes.axvspan(0, warm_up.value / 60, color="#eeeeee", linewidth=0)
        axes.set_ylim(0, max(*values, 1e-9) * 1.15)
        axes.set_title(f"{name} ({figure.unit})" if figure.unit else name, loc="left", fontsize="small")
        axes.tick_params(labelsize="x-small")
    for axes in places:
        axes.set_axis_off()
    return canvas


def _lines(axes: Axes, variants: Mapping[str, Mapping[int, float]]) -> None:
    for colour, (variant, rates) in zip(COLOURS, variants.items(), strict=False):
        axes.plot(list(rates), list(rates.values()), marker="o", color=colour, label=variant.replace("_", " "))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted({batch for rates in variants.values() for batch in rates}))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tasks a claim")
    axes.grid(visible=True, axis="y", color="#dddddd")


def _plain(value: float, _: object) -> str:
    return f"{value:,.10g}"


def _save(canvas: Canvas, path: Path) -> None:
    canvas.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
