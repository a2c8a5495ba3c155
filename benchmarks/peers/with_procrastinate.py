"""procrastinate on PostgreSQL: one worker process per processor, asyncio tasks, one fetch for each task."""

import sys

import procrastinate
import psycopg

from benchmarks.peers import work
from benchmarks.peers.peer import Peer
from benchmarks.peers.place import DSN, Place, setting

CONCURRENCY = 10
"""Short tasks at once in one process; 30, the documentation's example, and 1 are no faster on two processors."""


async def noop() -> None:
    work.noop()


async def stamp() -> None:
    work.stamp()


def declare(dsn: str) -> procrastinate.App:
    """The App, in a worker and in the process that enqueues; opens nothing."""
    # An async connector also enqueues synchronously
    # (procrastinate.readthedocs.io/en/stable/howto/advanced/sync_defer.html).
    # For short tasks the pool shall have "as many connections as your concurrency (plus one)"
    # (procrastinate.readthedocs.io/en/stable/discussions.html, "Mind the size").
    connector = procrastinate.PsycopgConnector(conninfo=dsn, max_size=CONCURRENCY + 1)
    app = procrastinate.App(connector=connector)
    # "Each sync task runs in its own thread", and async ones in the worker's loop
    # (procrastinate.readthedocs.io/en/stable/howto/basics/tasks.html): so what computes or waits is sync.
    for function in (noop, stamp, work.burn, work.linger):
        app.task(name=function.__name__)(function)
    return app


app = declare(setting(DSN))


class Procrastinate(Peer):
    """Two workers of its command line."""

    backlog = 3_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._app = declare(place.dsn)
        self._app.open()
        self._connection = psycopg.connect(place.dsn, autocommit=True)

    def prepare(self) -> None:
        self._app.schema_manager.apply_schema()

    def enqueue(self, name: str, count: int) -> None:
        # procrastinate.readthedocs.io/en/stable/howto/basics/batch_defer.html
        self._app.tasks[name].batch_defer(*({} for _ in range(count)))

    def enqueue_one(self, name: str) -> None:
        self._app.tasks[name].defer()

    def busy(self) -> bool:
        row = self._connection.execute(
            "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
        ).fetchone()
        return bool(row and row[0])

    def commands(self, short: bool) -> list[list[str]]:
        # "One of the ways to increase your processing throughput is to launch multiple workers, each using their own
        # process", and to let each run several tasks that do not compute
        # (procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html). LISTEN is on by default.
        command = [sys.executable, "-m", "procrastinate", "--log-level=warning", f"--app={__name__}.app", "worker"]
        command += [f"--concurrency={CONCURRENCY if short else 1}"]
        # procrastinate.readthedocs.io/en/stable/howto/production/delete_finished_jobs.html
        command += ["--delete-jobs=successful"]
        return [command] * self.place.processes

    def close(self) -> None:
        self._connection.close()
        self._app.close()
