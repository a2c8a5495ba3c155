"""Claim: the poll statement alone, in four variants; nothing is executed, nothing is settled.

``naive`` (FOR UPDATE), ``skip_locked`` and ``article`` (advisory locks, to the letter; for batches with its limits
raised) run on the article's table with the article's indexes; ``ours`` runs on ours, as supervisors do, each from where
its last claim ended, and is the only one that also writes an owner and a fence. Before each measurement the table is
filled anew with due rows, each due at a moment of its own, and analysed, so that every variant has the best plan that
it can have.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from benchmarks.clients import Client, OutOfLocks, Repeated, repeat, statement
from benchmarks.figures import percentile
from benchmarks.scenario import Bench, Result
from pgsched.model import Claim, Identity, Want
from pgsched.store.claims import claim_statement
from pgsched.store.sql import load
from pgsched.store.store import Store

CLIENTS, QUICK_CLIENTS = (1, 4, 16), (1, 4)
BATCHES, QUICK_BATCHES = (1, 10, 100, 500), (1, 100)
ROWS = {1: 30_000, 10: 120_000, 100: 300_000, 500: 400_000}
"""Queued for each batch size: more than can be claimed in the time."""
QUICK_ROWS = 4_000
SECONDS, QUICK_SECONDS = 2.0, 0.05
SPARE = 0.9
"""Of the rows, at most so many are claimed: with the last ones the clients would mostly see each other."""
WARM_UP = 6
"""Claims after which the server has decided how it plans a prepared statement."""
NAMESPACE = 1337
LEASE = 7200.0
HINTS = load("hints").replace(b"$1", b"'0'").replace(b"$2", b"false").replace(b"$3", b"'0'")
"""What the store sets for each transaction; here for the session, because it is not part of what is measured."""
FILL = """
    INSERT INTO scheduled_tasks (task_type, run_at)
    SELECT 'noop', now() - make_interval(secs => i / 1000.0) FROM generate_series(%s, 1, -1) AS i
"""


class Variant(NamedTuple):
    """One way to claim."""

    name: str
    dsn: str
    supervisors: list[int]
    """Whom each client claims for; empty where claims have no owner."""


class Tables(NamedTuple):
    """The schemas of the two."""

    article: str
    ours: str
    supervisors: list[int]


def claim(bench: Bench) -> list[Result]:
    """Measure every variant with every number of clients and every batch size."""
    results: list[Result] = []
    with _tables(bench) as tables:
        variants = [Variant(name, tables.article, []) for name in ("naive", "skip_locked", "article")]
        variants.append(Variant("ours", tables.ours, tables.supervisors))
        for clients in QUICK_CLIENTS if bench.quick else CLIENTS:
            for batch in QUICK_BATCHES if bench.quick else BATCHES:
                for variant in variants:
                    bench.progress(f"{variant.name}, {clients} clients, batches of {batch}")
                    results += _measure(bench, variant, clients, batch)
    return results


@contextmanager
def _tables(bench: Bench) -> Iterator[Tables]:
    with bench.server.fresh(empty=True) as article:
        with psycopg.connect(article, autocommit=True) as connection:
            connection.execute(statement("article_table"))
        yield Tables(article, bench.dsn, asyncio.run(_register(bench.dsn, max(CLIENTS))))


async def _register(dsn: str, count: int) -> list[int]:
    store = Store(dsn)
    identity = Identity(host="claim", boot_id="", pid_namespace=0, pid=0, started_ticks=0, processes=1)
    ids = [await store.register(identity, LEASE) for _ in range(count)]
    await store.close()
    return ids


def _measure(bench: Bench, variant: Variant, clients: int, batch: int) -> list[Result]:
    rows = QUICK_ROWS if bench.quick else ROWS[batch]
    seconds = bench.params.get("seconds", QUICK_SECONDS if bench.quick else SECONDS)
    prefix = f"{variant.name}_{clients}x{batch}"
    with psycopg.connect(variant.dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE scheduled_tasks")
        connection.execute(FILL, [rows])
        connection.execute("ANALYZE scheduled_tasks")
        with _pollers(variant, clients, batch) as pollers:
            try:
                warm = sum(poller.poll() for _ in range(WARM_UP) for poller in pollers)
                before = bench.server.cpu_seconds()
                repeated = repeat([poller.poll for poller in pollers], seconds, int(rows * SPARE) - warm)
                after = bench.server.cpu_seconds()
            except OutOfLocks:
                return _figures(prefix, None, None)
        [[claimed]] = connection.execute("SELECT count(*) FROM scheduled_tasks WHERE status = 'processing'").fetchall()
    if claimed != warm + repeated.rows:
        raise RuntimeError(f"{prefix}: {warm + repeated.rows} claims were counted, but {claimed} rows are claimed")
    return _figures(prefix, repeated, None if before is None or after is None else after - before)


def _figures(prefix: str, repeated: Repeated | None, used: float | None) -> list[Result]:
    """Without figures where the server lacks memory for so many locks."""
    rate = p50 = p99 = cpu = None
    if repeated is not None:
        rate = repeated.rows / repeated.seconds
        p50, p99 = (percentile(repeated.times, p) * 1e3 for p in (50, 99))
        # Milliseconds a thousand tasks are microseconds a task.
        cpu = used / repeated.rows * 1e6 if used is not None and repeated.rows else None
    return [
        Result(f"{prefix}_claims_per_s", rate, "1/s"),
        Result(f"{prefix}_p50_ms", p50, "ms"),
        Result(f"{prefix}_p99_ms", p99, "ms"),
        Result(f"{prefix}_postgres_cpu_ms_per_1000", cpu, "ms"),
    ]


class Poller:
    """One client of the variants that run on the article's table."""

    def __init__(self, dsn: str, text: bytes, parameters: tuple[int, ...]) -> None:
        self.client = Client(dsn, text)
        self._parameters = parameters

    def poll(self) -> int:
        """Claim once; return how many."""
        result = self.client.run(*self._parameters)
        return result.ntuples if result is not None else 0


class OurPoller:
    """One client of ours."""

    def __init__(self, dsn: str, supervisor: int, batch: int) -> None:
        self.client = Client(dsn, load("claim"), [HINTS])
        self._supervisor = supervisor
        self._batch = batch
        self._want = Want("noop", "default", 0, batch)

    def poll(self) -> int:
        """Claim once, and remember where the claim ended; return how many."""
        _, parameters = claim_statement(self._supervisor, NAMESPACE, [self._want], self._batch)
        result = self.client.run(*parameters)
        if result is None or result.ntuples < 2:
            # The first row is no claim: it holds counts.
            return 0
        last = result.ntuples - 1
        run_at, task_id = (result.get_value(last, Claim._fields.index(name)) or b"" for name in ("run_at", "task_id"))
        self._want = self._want._replace(floor_run_at=run_at.decode(), floor_id=int(task_id), passing=True)
        return last


@contextmanager
def _pollers(variant: Variant, clients: int, batch: int) -> Iterator[list[Poller | OurPoller]]:
    pollers: list[Poller | OurPoller] = []
    try:
        # One by one, so that those that were made are closed when the next one fails.
        pollers.extend(_poller(variant, number, batch) for number in range(clients))
        yield pollers
    finally:
        for poller in pollers:
            poller.client.close()


def _poller(variant: Variant, number: int, batch: int) -> Poller | OurPoller:
    if variant.supervisors:
        return OurPoller(variant.dsn, variant.supervisors[number], batch)
    if variant.name != "article":
        return Poller(variant.dsn, statement(f"claim_{variant.name}"), (batch,))
    if batch == 1:
        return Poller(variant.dsn, statement("claim_article"), (NAMESPACE,))
    return Poller(variant.dsn, statement("claim_article_batch"), (NAMESPACE, batch))
