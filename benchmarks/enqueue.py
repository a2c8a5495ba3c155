"""Enqueue: how fast tasks can be queued, and what it costs that somebody is woken.

First one client, with pgsched's own functions and with plain SQL, while nothing runs. Then 16 clients at once, each
with one INSERT a commit, beside a supervisor that listens, beside one that only polls, and beside none. Twice: with
tasks that are due, which the supervisor runs meanwhile, and with tasks of tomorrow, for which it is woken in vain.
"""

from collections.abc import Callable
from contextlib import nullcontext

import psycopg

from benchmarks import tasks
from benchmarks.clients import Client, repeat
from benchmarks.figures import median
from benchmarks.scenario import Bench, Result
from benchmarks.supervisors import supervisor
from pgsched import App

CLIENTS = 16
MANY = 1_000
"""Tasks of one call, or of one INSERT."""
SECONDS, QUICK_SECONDS = 5.0, 0.1
ROUNDS = 3
ONE = b"INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('noop', now() + make_interval(secs => $1::float8))"
MANY_ROWS = b"INSERT INTO scheduled_tasks (task_type, run_at) SELECT 'noop', now() FROM generate_series(1, $1::integer)"
DUE, TOMORROW = 0, 86_400
MODES: dict[str, tuple[str, ...] | None] = {"notify": (), "poll_only": ("--poll-only",), "alone": None}
"""Options of the supervisor beside the clients; None: there is no supervisor."""


def enqueue(bench: Bench) -> list[Result]:
    """Measure one client, then many."""
    seconds = bench.params.get("seconds", QUICK_SECONDS if bench.quick else SECONDS)
    return [
        *_one_client(bench, seconds),
        *_many_clients(bench, seconds, "", DUE),
        *_many_clients(bench, seconds, "_ahead", TOMORROW),
    ]


def _one_client(bench: Bench, seconds: float) -> list[Result]:
    app = App(bench.dsn)
    noop = app.task(tasks.noop.function)
    one, many = Client(bench.dsn, ONE), Client(bench.dsn, MANY_ROWS)
    ways: dict[str, Callable[[], int]] = {
        "enqueue": lambda: _done(noop.enqueue(), 1),
        "enqueue_many": lambda: _done(noop.enqueue_many({} for _ in range(MANY)), MANY),
        "sql_one": lambda: _done(one.run(DUE), 1),
        "sql_many": lambda: _done(many.run(MANY), MANY),
    }
    results = []
    try:
        for name, way in ways.items():
            bench.progress(f"one client: {name}")
            way()
            repeated = repeat([way], seconds)
            results.append(Result(f"{name}_tasks_per_s", repeated.rows / repeated.seconds, "1/s"))
    finally:
        app.close()
        one.close()
        many.close()
    return results


def _many_clients(bench: Bench, seconds: float, suffix: str, ahead: int) -> list[Result]:
    """Medians over rounds in which each mode has its turn, so that all see the same machine."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(1 if bench.quick else ROUNDS):
        for mode in MODES:
            bench.progress(f"{CLIENTS} clients{suffix.replace('_', ', ')}, round {turn + 1}: {mode}")
            rates[mode].append(_rate(bench, mode, seconds, ahead))
    ratios = [silent / heard for silent, heard in zip(rates["poll_only"], rates["notify"], strict=True)]
    return [
        *(Result(f"clients16_{mode}{suffix}_tasks_per_s", median(rates[mode]), "1/s") for mode in MODES),
        Result(f"notify_cost_ratio{suffix}", median(ratios), ""),
    ]


def _rate(bench: Bench, mode: str, seconds: float, ahead: int) -> float:
    options = MODES[mode]
    with bench.server.fresh() as dsn:
        clients = [Client(dsn, ONE) for _ in range(CLIENTS)]
        try:
            with nullcontext() if options is None else supervisor(dsn, bench.processes, *options):
                repeated = repeat([lambda client=client: _done(client.run(ahead), 1) for client in clients], seconds)  # type: ignore[misc]
                # The supervisor would run what is left before it ends.
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute("DELETE FROM scheduled_tasks_live WHERE status = 'queued'")
        finally:
            for client in clients:
                client.close()
    return repeated.rows / repeated.seconds


def _done(_: object, count: int) -> int:
    return count
