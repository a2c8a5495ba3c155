"""Celery on Redis: one worker with its prefork pool of two processes, no result backend."""

import sys

from celery import Celery
from redis import Redis

from benchmarks.peers import work
from benchmarks.peers.peer import Peer
from benchmarks.peers.place import REDIS, Place, setting


def declare(socket: str) -> Celery:
    """The app, in the worker and in the process that enqueues; opens nothing."""
    # A Unix socket, as PostgreSQL's
    # (docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html#configuration).
    app = Celery("peers", broker=f"redis+socket://{socket}", set_as_current=False)
    # "Results can be disabled": docs.celeryq.dev/en/stable/userguide/tasks.html#ignore-results-you-don-t-want
    app.conf.task_ignore_result = True
    app.conf.broker_connection_retry_on_startup = True
    for function in (work.noop, work.stamp):
        app.task(function, name=function.__name__)
    for function in (work.burn, work.linger):
        # What computes is acknowledged late
        # (docs.celeryq.dev/en/stable/userguide/optimizing.html#reserve-one-task-at-a-time) and comes back when its
        # process is killed (.../userguide/configuration.html#task-reject-on-worker-lost): both are off by default, and
        # then a killed task is lost.
        app.task(function, name=function.__name__, acks_late=True, reject_on_worker_lost=True)
    return app


app = declare(setting(REDIS))


class CeleryPeer(Peer):
    """One ``celery worker`` with two processes."""

    backlog = 5_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._app = declare(place.redis)
        self._app.finalize()
        self._redis = Redis(unix_socket_path=place.redis)

    def prepare(self) -> None:
        """Nothing: Redis makes a list when something is put into it."""

    def enqueue(self, name: str, count: int) -> None:
        # It has no bulk call; one producer for all saves what can be saved
        # (docs.celeryq.dev/en/stable/userguide/calling.html#connections).
        task = self._app.tasks[name]
        with self._app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                task.apply_async(producer=producer)

    def enqueue_one(self, name: str) -> None:
        self._app.tasks[name].delay()

    def busy(self) -> bool:
        return bool(self._redis.llen("celery") or self._redis.hlen("unacked"))

    def commands(self, short: bool) -> list[list[str]]:
        command = [sys.executable, "-m", "celery", "-A", f"{__name__}:app", "worker", "--loglevel", "WARNING"]
        # "If you have many short-running tasks [...] this number should be large. [...] Say 64, or 128"
        # (docs.celeryq.dev/en/stable/userguide/optimizing.html#prefetch-limits). The default, 4, "is usually a good
        # choice"; the 1 that is meant for tasks of long duration is slower with those of 20 ms.
        command += ["--pool", "prefork", "--prefetch-multiplier", "128" if short else "4"]
        # Without asking other workers, of which there are none: that would only make the start a second longer.
        return [[*command, "--without-mingle", "--concurrency", str(self.place.processes)]]

    def close(self) -> None:
        self._app.close()
        self._redis.close()
