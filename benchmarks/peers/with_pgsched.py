"""pgsched itself, as its documentation says: one supervisor with two workers, all defaults."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.peers import work
from benchmarks.peers.peer import Check, Peer
from benchmarks.peers.place import DSN, Place, setting
from benchmarks.supervisors import supervisor
from pgsched import App, Retry


def declare(dsn: str | None) -> App:
    """The App, in a worker and in the process that enqueues; opens nothing."""
    app = App(dsn)
    for function in work.TASKS:
        # The others run a killed task again at once; by default a retry here waits up to a second, on purpose.
        app.task(retry=Retry(base=0))(function)
    return app


app = declare(setting(DSN) or None)


class Pgsched(Peer):
    """One ``pgsched run``."""

    backlog = 50_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._app = declare(place.dsn)
        self._connection = psycopg.connect(place.dsn, autocommit=True)

    def prepare(self) -> None:
        """Nothing: the schema is there."""

    def enqueue(self, name: str, count: int) -> None:
        self._app.tasks[name].enqueue_many({} for _ in range(count))

    def enqueue_one(self, name: str) -> None:
        self._app.tasks[name].enqueue()

    def busy(self) -> bool:
        row = self._connection.execute(
            "SELECT EXISTS (SELECT FROM scheduled_tasks WHERE status IN ('queued', 'processing'))"
        ).fetchone()
        return bool(row and row[0])

    def commands(self, short: bool) -> list[list[str]]:
        raise NotImplementedError("its workers are run by a supervisor")

    @contextmanager
    def workers(self, short: bool) -> Iterator[Check]:
        del short
        with supervisor(
            self.place.dsn, self.place.processes, app=f"{__name__}:app", env=self.place.environment
        ) as running:

            def check() -> None:
                if running.process.poll() is not None:
                    raise RuntimeError(f"pgsched run ended with code {running.process.returncode}")

            yield check

    def close(self) -> None:
        self._connection.close()
        self._app.close()
