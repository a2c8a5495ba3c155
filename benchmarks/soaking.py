"""What the soak runs: tasks that end in every way there is, and the thread that keeps queueing them.

Most tasks do nothing; beside them are short computations, long payloads and results, tasks for later, and those that
raise, kill their worker, exceed their timeout or are cancelled. The tasks are imported by workers, the rest is the
benchmark's own.
"""

import json
import os
import signal
import threading
import time

import psycopg

from benchmarks.spinning import spin
from pgsched import App, Retry, current_task
from pgsched.store import admin
from pgsched.store.views import Filter

ROUND = 0.5
"""Seconds between two INSERTs."""
LONG = 80_000
"""Characters of a long payload: more than a frame holds."""
LATER = (1.0, 20.0)
"""Seconds: how far in the future tasks are queued for later, from and to."""
NEVER = 3600.0

INSERT = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at, max_retries)
    SELECT task_type, payload::jsonb, now() + make_interval(secs => delay), max_retries
    FROM unnest(%s::text[], %s::text[], %s::float8[], %s::integer[]) AS task (task_type, payload, delay, max_retries)
"""

app = App()
soon = Retry(base=0.05, cap=0.2)


@app.task
def noop() -> None:
    """Do nothing."""


@app.task
def compute(loops: int) -> int:
    """Keep a processor busy."""
    return spin(loops)


@app.task
def echo(text: str) -> str:
    """Return what came."""
    return text


@app.task(retry=soon)
def refuse() -> None:
    """Raise at every attempt."""
    raise ValueError("no")


@app.task(retry=soon)
def stumble() -> None:
    """Raise at the first attempt."""
    if current_task().attempt == 1:
        raise ValueError("not yet")


@app.task(retry=soon)
def crash() -> None:
    """Kill the worker at the first attempt."""
    if current_task().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=soon, timeout=0.2)
def overrun() -> None:
    """Take too long at the first attempt."""
    if current_task().attempt == 1:
        time.sleep(NEVER)


@app.task
def linger() -> None:
    """Stay until cancelled."""
    time.sleep(NEVER)


class Load(threading.Thread):
    """Queues and cancels until it is told to stop.

    :param rate: tasks a second that do nothing; all others are so many whatever the rate.
    """

    def __init__(self, dsn: str, rate: float) -> None:
        super().__init__(name="load", daemon=True)
        self.error: Exception | None = None
        self._dsn = dsn
        self._noops = max(round(rate * ROUND), 1)
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        """End it, and wait for its end."""
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        """Queue a round whenever one is due."""
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                begin, turn = time.monotonic(), 0
                while not self._stop_asked.wait(max(begin + turn * ROUND - time.monotonic(), 0.0)):
                    # Those of the round before, one of which runs by now.
                    admin.cancel(connection, Filter(task_types=["linger"]))
                    connection.execute(INSERT, list(map(list, zip(*self._round(turn), strict=True))))
                    turn += 1
        except Exception as error:
            self.error = error

    def _round(self, turn: int) -> list[tuple[str, str, float, int]]:
        """Task type, payload, delay and retries of each task."""
        first, last = LATER
        later = first + turn * ROUND % (last - first)
        tasks = [("noop", "{}", 0.0, 3)] * self._noops
        tasks += [("noop", "{}", later, 3)] * 10
        tasks += [("compute", '{"loops": 20000}', 0.0, 3)] * 5
        tasks += [("stumble", "{}", 0.0, 3)] * 3 + [("refuse", "{}", 0.0, 1)]
        if turn % 2 == 0:
            tasks.append(("echo", json.dumps({"text": "x" * LONG}), 0.0, 3))
        match turn % 4:
            case 0:
                tasks += [("linger", "{}", 0.0, 3), ("linger", "{}", NEVER, 3)]
            case 2:
                tasks.append(("crash", "{}", 0.0, 3))
            case 3:
                tasks.append(("overrun", "{}", 0.0, 3))
        return tasks
