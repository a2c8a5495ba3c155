"""Backlog: does a claim cost more when the table is full of what it does not take?

The same hundred due rows are claimed and given back again and again, beside nothing, a million more due rows, a million
future ones of a higher priority, and ten million finished ones; before and after ANALYZE. Each table is measured in
turns with one that holds the hundred rows and nothing else, so that both see the same machine. Also on Debian's
PostgreSQL 15, the oldest that pgsched supports, where that is installed.
"""

import asyncio
import time
from typing import Any, NamedTuple

import psycopg

from benchmarks.figures import percentile
from benchmarks.filling import fill, queue_noops, quiet
from benchmarks.oldest import oldest_server
from benchmarks.scenario import Bench, Result, Server
from pgsched.model import Claim, Identity, Verdict, VerdictKind, Want
from pgsched.store.arrays import texts
from pgsched.store.claims import claim_statement
from pgsched.store.pipeline import Statement
from pgsched.store.sql import load
from pgsched.store.store import Store

BATCH = 100
NAMESPACE = 1337
WARM_UP = 10
"""Claims after which the server has decided how to plan the prepared statements, and caches are warm."""
LEASE = 7200.0
EMPTY = "empty"
MEASURED = ("claim_p50_ms", "discover_p50_ms", "claim_buffers", "discover_buffers")

IDENTITY = Identity(host="benchmark", boot_id="", pid_namespace=0, pid=0, started_ticks=0, processes=1)


class Load(NamedTuple):
    """What stands beside the rows that are claimed."""

    insert: str
    rows: int


LOADS = {
    "ready": Load(
        "INSERT INTO scheduled_tasks (task_type, run_at)"
        " SELECT 'noop', now() + interval '1 microsecond' * i FROM generate_series(1, %s) AS i",
        1_000_000,
    ),
    "future": Load(
        "INSERT INTO scheduled_tasks (task_type, run_at, priority)"
        " SELECT 'noop', now() + interval '1 day', 9 FROM generate_series(1, %s)",
        1_000_000,
    ),
    "finished": Load(
        "INSERT INTO scheduled_tasks (task_type, run_at, status, started_at, finished_at)"
        " SELECT 'noop', now(), 'completed', now(), now() FROM generate_series(1, %s)",
        10_000_000,
    ),
}
QUICK_ROWS = 5_000


class Cost(NamedTuple):
    """What a poll costs in one table; the fields are called as in :data:`MEASURED`."""

    claim_p50_ms: float
    discover_p50_ms: float
    claim_buffers: float
    """Pages that the statement touched."""
    discover_buffers: float


class Pair(NamedTuple):
    """One state of a full table, and the nearly empty one measured in turns with it."""

    state: str
    full: Cost
    empty: Cost


def backlog(bench: Bench) -> list[Result]:
    """Measure on the given server, and on PostgreSQL 15."""
    results = _results("", _measure(bench, bench.server))
    with oldest_server() as oldest:
        if oldest is not None:
            results += _results("backlog15_", _measure(bench, oldest))
    return results


def _measure(bench: Bench, server: Server) -> list[Pair]:
    pairs: list[Pair] = []
    for name, load_of in LOADS.items():
        with server.fresh() as empty, server.fresh() as full:
            rows = QUICK_ROWS if bench.quick else load_of.rows
            where = f"PostgreSQL {server.version // 10_000}, {name}"
            _prepare(empty)
            _prepare(full)
            with psycopg.connect(full, autocommit=True) as connection:
                bench.progress(f"{where}: filling")
                fill(connection, load_of.insert, rows, bench.progress)
                quiet(connection)
            for suffix in ("", "_analysed"):
                if suffix:
                    _analyse(empty)
                    _analyse(full)
                bench.progress(f"{where}{suffix}: claiming")
                in_full, in_empty = asyncio.run(_alternate(full, empty, rounds=2 if bench.quick else 20))
                pairs.append(Pair(name + suffix, in_full, in_empty))
    return pairs


def _prepare(dsn: str) -> None:
    """Queue the rows that are claimed, and let nothing but ourselves analyse and vacuum the tables."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("scheduled_tasks_live", "scheduled_tasks_ended_rest"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        queue_noops(connection, BATCH)


def _analyse(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE scheduled_tasks")


async def _alternate(full: str, empty: str, *, rounds: int) -> tuple[Cost, Cost]:
    """Measure two tables in turns."""
    pollers = [await Poller.begin(dsn) for dsn in (full, empty)]
    for poller in pollers:
        await poller.poll(WARM_UP)
        poller.forget()
    for _ in range(rounds):
        for poller in pollers:
            await poller.poll(10)
    costs = [await poller.cost() for poller in pollers]
    for poller in pollers:
        await poller.end()
    return costs[0], costs[1]


class Poller:
    """Polls one table as a supervisor does: discovers, claims a batch from the head of the group, and gives it back."""

    def __init__(self, dsn: str, store: Store, supervisor: int) -> None:
        self._dsn = dsn
        self._store = store
        self._supervisor = supervisor
        self._claiming: list[float] = []
        self._discovering: list[float] = []

    @classmethod
    async def begin(cls, dsn: str) -> "Poller":
        """Connect and register."""
        store = Store(dsn)
        await store.open()
        return cls(dsn, store, await store.register(IDENTITY, LEASE))

    async def end(self) -> None:
        """Leave nothing behind."""
        await self._store.deregister(self._supervisor)
        await self._store.close()

    def forget(self) -> None:
        """Drop the times so far."""
        self._claiming.clear()
        self._discovering.clear()

    async def poll(self, times: int) -> None:
        """Poll so often, and keep the times."""
        for _ in range(times):
            started = time.perf_counter()
            want = await self._want()
            discovered = time.perf_counter()
            answer = await self._store.exchange(self._supervisor, [], [want], BATCH)
            claimed = time.perf_counter()
            if len(answer.claims) != BATCH:
                raise RuntimeError(f"{len(answer.claims)} rows were claimed instead of {BATCH}")
            self._discovering.append((discovered - started) * 1e3)
            self._claiming.append((claimed - discovered) * 1e3)
            await self._give_back(answer.claims)

    async def cost(self) -> Cost:
        """The medians of the times, and the pages that the statements touch."""
        want = await self._want()
        with psycopg.connect(self._dsn) as connection:
            claim = _buffers(connection, claim_statement(self._supervisor, NAMESPACE, [want], BATCH))
            discover = _buffers(connection, ("discover", (texts(["noop"]),)))
        return Cost(percentile(self._claiming, 50), percentile(self._discovering, 50), claim, discover)

    async def _want(self) -> Want:
        groups = await self._store.discover(["noop"], None)
        [due] = [group for group in groups if group.due_in <= 0]
        return Want(due.task_type, due.queue, due.priority, BATCH, due.head_run_at, due.head_id)

    async def _give_back(self, claims: list[Claim]) -> None:
        verdicts = [Verdict(claim, VerdictKind.RELEASED, 0.0) for claim in claims]
        answer = await self._store.exchange(self._supervisor, verdicts, [], 0)
        if not all(answer.settled):
            raise RuntimeError("a claim could not be given back")


def _buffers(connection: psycopg.Connection[Any], statement: Statement) -> float:
    """Run a statement, undo it, and count the pages that it touched; planned under the hints that the store gives."""
    cursor = psycopg.RawCursor(connection)
    name, parameters = statement
    with connection.transaction(force_rollback=True):
        cursor.execute(load("hints"), ["60000", "true", "0"])
        cursor.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + load(name), parameters)
        [[[answer]]] = cursor.fetchall()
    return float(answer["Plan"]["Shared Hit Blocks"] + answer["Plan"]["Shared Read Blocks"])


def _results(prefix: str, pairs: list[Pair]) -> list[Result]:
    costs = {EMPTY: _typical([pair.empty for pair in pairs]), **{pair.state: pair.full for pair in pairs}}
    figures = [
        Result(f"{prefix}{measured}_{state}", getattr(cost, measured), "ms" if measured.endswith("ms") else "")
        for measured in MEASURED
        for state, cost in costs.items()
    ]
    ratios = {pair.state: pair.full.claim_p50_ms / pair.empty.claim_p50_ms for pair in pairs}
    discovering = [pair.full.discover_p50_ms / pair.empty.discover_p50_ms for pair in pairs]
    buffers = [pair.full.claim_buffers / pair.empty.claim_buffers for pair in pairs]
    return [
        *figures,
        *(Result(f"{prefix}ratio_to_empty_{state}", ratio, "") for state, ratio in ratios.items()),
        Result(f"{prefix}worst_ratio_to_empty", max(ratios.values()), ""),
        Result(f"{prefix}worst_discover_ratio_to_empty", max(discovering), ""),
        Result(f"{prefix}worst_buffers_ratio_to_empty", max(buffers), ""),
    ]


def _typical(costs: list[Cost]) -> Cost:
    """The median of each figure over several measurements of the same."""
    return Cost(*(percentile(list(values), 50) for values in zip(*costs, strict=True)))
