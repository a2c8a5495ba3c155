"""pgqueuer on PostgreSQL: coroutines in one process per processor, batches, rows deleted when they end."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pgqueuer
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.queries import Queries, SyncQueries
from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers import work
from benchmarks.peers.peer import Peer
from benchmarks.peers.place import DSN, Place, setting

UNDERSTOOD = (
    *("host", "port", "user", "password", "dbname", "passfile", "options"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl"),
)
"""What asyncpg takes from a connection string; it would send anything else to the server as a setting."""


async def noop(_: Any) -> None:
    work.noop()


async def stamp(_: Any) -> None:
    work.stamp()


# "Wrap blocking code with asyncio.to_thread()": what the library itself says to a function that is not async.
async def burn(_: Any) -> None:
    await asyncio.to_thread(work.burn)


async def linger(_: Any) -> None:
    await asyncio.to_thread(work.linger)


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """What a process runs. One connection: "a single connection for QueueManager"
    (janbjorge.github.io/pgqueuer/guides/performance-tuning)."""
    connection = await asyncpg.connect(uri(setting(DSN)))
    try:
        # asyncpg: "roughly 1.7x the throughput of psycopg" (janbjorge.github.io/pgqueuer/comparisons/benchmarks).
        queuer = PgQueuer.from_asyncpg_connection(connection)
        for function in (noop, stamp, burn, linger):
            queuer.entrypoint(function.__name__)(function)
        yield queuer
    finally:
        await connection.close()


def uri(dsn: str) -> str:
    """A connection string as asyncpg reads it: a URI only."""
    parameters = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if key in UNDERSTOOD}
    return f"postgresql://?{urlencode(parameters)}"


class PgQueuerPeer(Peer):
    """Two processes of this module."""

    backlog = 50_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._connection = psycopg.connect(place.dsn, autocommit=True)
        self._queries = SyncQueries(SyncPsycopgDriver(self._connection))

    def prepare(self) -> None:
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        connection = await asyncpg.connect(uri(self.place.dsn))
        try:
            queries = Queries(AsyncpgDriver(connection))
            # Tables are logged by default ("durable"), as PostgreSQL's own are.
            await queries.install()
            # "Run pgq autovac after installation" (janbjorge.github.io/pgqueuer/guides/performance-tuning).
            await queries.optimize_autovacuum()
        finally:
            await connection.close()

    def enqueue(self, name: str, count: int) -> None:
        # All in one call, as the project's own benchmark fills its queue
        # (janbjorge.github.io/pgqueuer/comparisons/benchmarks, "Drain Strategy").
        self._queries.enqueue([name] * count, [None] * count, [0] * count)

    def enqueue_one(self, name: str) -> None:
        self._queries.enqueue(name, None)

    def busy(self) -> bool:
        row = self._connection.execute("SELECT EXISTS (SELECT FROM pgqueuer)").fetchone()
        return bool(row and row[0])

    def commands(self, short: bool) -> list[list[str]]:
        # A large batch_size for short tasks, a small one for long ones, and a process takes no more than
        # max_concurrent_tasks, at least twice the batch (.../guides/performance-tuning): so the processes share what
        # computes. Of 100, 500 and 1000 the second is the fastest here. A process with no room left looks again after
        # 0.1 s; ten tasks of 20 ms outlast that. Everything else, the 30 s until a dead process is noticed too, is
        # default.
        sizes = ["500"] if short else ["5", "10"]
        return [[sys.executable, "-m", __name__, *sizes]] * self.place.processes

    def close(self) -> None:
        self._connection.close()


def run(batch_size: int, max_concurrent_tasks: int | None = None) -> None:
    """What ``pgq run`` does, on the loop that it chooses; its own command line breaks with the newest typer."""
    uvloop.run(pgqueuer.run(worker, batch_size=batch_size, max_concurrent_tasks=max_concurrent_tasks))


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
