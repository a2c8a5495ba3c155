"""RQ on Redis: two workers; for short tasks those that do not fork. Run as a module, it is a worker."""

import sys

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker

from benchmarks.peers import work
from benchmarks.peers.peer import Peer
from benchmarks.peers.place import REDIS, Place, setting

QUEUE = "peers"
CHUNK = 1_000
FUNCTIONS = {function.__name__: function for function in work.TASKS}


class RqPeer(Peer):
    """Two processes of this module."""

    backlog = 2_000

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._redis = Redis(unix_socket_path=place.redis)
        self._queue = Queue(QUEUE, connection=self._redis)

    def prepare(self) -> None:
        """Nothing: Redis makes a list when something is put into it."""

    def enqueue(self, name: str, count: int) -> None:
        # All in one pipeline (python-rq.org/docs); results are not kept (python-rq.org/docs/results).
        data = Queue.prepare_data(FUNCTIONS[name], result_ttl=0)
        while count > 0:
            self._queue.enqueue_many([data] * min(count, CHUNK))
            count -= CHUNK

    def enqueue_one(self, name: str) -> None:
        # Run again "immediately" (python-rq.org/docs/exceptions); without it a task whose process
        # was killed is not run again.
        self._queue.enqueue(FUNCTIONS[name], result_ttl=0, retry=Retry(max=3))

    def busy(self) -> bool:
        return bool(self._queue.count or self._queue.started_job_registry.count)

    def commands(self, short: bool) -> list[list[str]]:
        return [[sys.executable, "-m", __name__, "simple" if short else "forking"]] * self.place.processes

    def close(self) -> None:
        self._redis.close()


def run(kind: str) -> None:
    """One worker, in a script of its own that has imported what the tasks need before it forks
    (python-rq.org/docs/workers/#performance-notes)."""
    # SimpleWorker is documented as six times faster and for tasks of "single digit milliseconds"; for the others
    # "run Worker", which forks a process for each task (github.com/rq/rq, docs/benchmark.md).
    worker = {"simple": SimpleWorker, "forking": Worker}[kind]
    worker([QUEUE], connection=Redis(unix_socket_path=setting(REDIS))).work(logging_level="WARNING")


if __name__ == "__main__":
    run(sys.argv[1])
