"""The scenario ``peers``: the same tasks in pgsched and in other task queues, on one machine, in one run.

pgqueuer and procrastinate use a schema of their own on the server that pgsched uses, Celery and RQ a Redis of their own
on this host. Each has two processes and the settings that its documentation recommends; where short and long tasks want
different ones, each measure gets the ones that suit it. What is not installed (``pip install -e '.[peers]'``, Debian's
redis-server) is left out, with a line that says so.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks.figures import percentile
from benchmarks.peers.measures import Measures
from benchmarks.peers.peer import Peer
from benchmarks.peers.place import Place
from benchmarks.peers.redis_server import binary, redis_server
from benchmarks.scenario import Bench, Result, Unavailable
from benchmarks.spinning import loops_for

BURN = 0.02
"""Seconds of pure Python in one task of the CPU measure."""


class Candidate(NamedTuple):
    """Where a peer's adapter is, and what it stores its tasks in."""

    name: str
    module: str
    adapter: str
    redis: bool


OURS = Candidate("pgsched", "with_pgsched", "Pgsched", redis=False)
CANDIDATES = (
    OURS,
    Candidate("pgqueuer", "with_pgqueuer", "PgQueuerPeer", redis=False),
    Candidate("procrastinate", "with_procrastinate", "Procrastinate", redis=False),
    Candidate("celery", "with_celery", "CeleryPeer", redis=True),
    Candidate("rq", "with_rq", "RqPeer", redis=True),
)


class Round(NamedTuple):
    """What is measured between one start of the workers and their end."""

    short: bool
    """Whether the workers have the settings for short tasks."""
    measures: tuple[str, ...]


class Sizes(NamedTuple):
    """How much of everything."""

    samples: int
    burns: int
    backlog: float
    """Of each peer's own number of no-ops."""
    warm_up: int
    """Tasks that run before anything is measured."""
    patience: float
    """Seconds until a task that was killed is given up."""
    rounds: tuple[Round, ...]


LONG = Round(short=False, measures=("cpu", "recovery"))
# Latency on tables that nothing has passed through yet; with --quick there is no time for another start.
FULL = Sizes(300, 400, 1.0, 10, 40.0, (Round(True, ("latency",)), Round(True, ("drain",)), LONG))
QUICK = Sizes(4, 10, 0.02, 1, 0.2, (Round(True, ("drain", "latency")), LONG))

UNITS = {
    "drain_tasks_per_s": "1/s",
    "pickup_p50_ms": "ms",
    "pickup_p99_ms": "ms",
    "cpu_tasks_per_s": "1/s",
    "recovery_s": "s",
}
RATIOS = {"drain": "drain_tasks_per_s", "latency": "pickup_p50_ms", "cpu": "cpu_tasks_per_s"}

Figures = dict[str, float | None]


def peers(bench: Bench) -> list[Result]:
    """Measure every peer that is installed, one after the other."""
    sizes = QUICK if bench.quick else FULL
    figures: dict[str, Figures] = {}
    for candidate in CANDIDATES:
        figures[candidate.name] = dict.fromkeys(UNITS)
        try:
            with _prepared(bench, candidate) as peer:
                _measure(peer, sizes, figures[candidate.name], partial(_progress, bench, candidate.name))
        except Unavailable as error:
            _say(f"{candidate.name}: {error}")
            continue
        if figures[candidate.name]["recovery_s"] is None:
            _say(f"{candidate.name}: the task whose process was killed did not start again: > {sizes.patience:g} s")
    return [*_figures(figures), *_ratios(figures)]


@contextmanager
def _prepared(bench: Bench, candidate: Candidate) -> Iterator[Peer]:
    """The peer on tables, or a Redis, of its own."""
    try:
        module = importlib.import_module(f"benchmarks.peers.{candidate.module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("benchmarks", "pgsched")):
            raise
        raise Unavailable(f"not measured, {error.name} is not installed; pip install -e '.[peers]'") from None
    if candidate.redis and binary() is None:
        raise Unavailable("not measured, redis-server is not installed; Debian's package is redis-server")
    directory = bench.scratch / candidate.name
    directory.mkdir()
    with ExitStack() as stack:
        place = Place(
            directory=directory,
            dsn="" if candidate.redis else stack.enter_context(bench.server.fresh()),
            redis=stack.enter_context(redis_server()) if candidate.redis else "",
            loops=loops_for(BURN),
            processes=bench.processes,
        )
        peer: Peer = getattr(module, candidate.adapter)(place)
        stack.callback(peer.close)
        peer.prepare()
        yield peer


def _measure(peer: Peer, sizes: Sizes, figures: Figures, progress: Callable[[str], None]) -> None:
    backlog = int(peer.backlog * sizes.backlog)
    for turn in sizes.rounds:
        if "drain" in turn.measures:
            progress(f"enqueue {backlog} no-ops")
            peer.enqueue("noop", backlog)
        with peer.workers(turn.short) as check:
            measures = Measures(peer, check)
            if "drain" in turn.measures:
                progress(f"drain {backlog} no-ops")
                figures["drain_tasks_per_s"] = measures.drain(backlog)
            measures.warm_up(sizes.warm_up)
            if "latency" in turn.measures:
                progress(f"latency of {sizes.samples} tasks, one at a time")
                pickups = measures.latency(sizes.samples)
                figures["pickup_p50_ms"], figures["pickup_p99_ms"] = percentile(pickups, 50), percentile(pickups, 99)
            if "cpu" in turn.measures:
                progress(f"{sizes.burns} tasks of {BURN:g} s")
                figures["cpu_tasks_per_s"] = measures.cpu(sizes.burns)
            measures.settle()
            if "recovery" in turn.measures:
                progress(f"SIGKILL, and at most {sizes.patience:g} s")
                figures["recovery_s"] = measures.recovery(sizes.patience)


def _figures(figures: dict[str, Figures]) -> list[Result]:
    return [
        Result(f"{peer}_{name}", value, UNITS[name]) for peer, own in figures.items() for name, value in own.items()
    ]


def _ratios(figures: dict[str, Figures]) -> list[Result]:
    """pgsched's figure divided by the peer's: above 1 is better in drain and cpu, below 1 in latency."""
    ours = figures[OURS.name]
    return [
        Result(f"{ratio}_vs_{peer}", _divide(ours[name], theirs[name]), "")
        for peer, theirs in figures.items()
        if peer != OURS.name
        for ratio, name in RATIOS.items()
    ]


def _divide(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def _progress(bench: Bench, name: str, what: str) -> None:
    bench.progress(f"{name}: {what}")


def _say(line: str) -> None:
    # On a terminal the progress stands there.
    clear = "\r\x1b[2K" if sys.stderr.isatty() else ""
    print(f"{clear}peers: {line}", file=sys.stderr, flush=True)
