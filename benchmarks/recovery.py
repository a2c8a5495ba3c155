"""Recovery: how long until work that died is queued again, and until its place is taken.

A worker is killed while it runs a task; a supervisor is killed and started again on the same host; a supervisor is
killed for good, and one that takes itself to be on another host takes over. The signal is SIGKILL: nobody says goodbye.
"""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import psycopg

from benchmarks import stamps
from benchmarks.figures import percentile
from benchmarks.scenario import Bench, Result
from benchmarks.supervisors import Supervisor, supervisor

LATE = 120.0
STEADY = 0.2
"""Seconds before each kill, so that nothing of the one before is still under way; never part of a figure."""
HASTY = ("--lease", "2", "--reap-interval", "0.5")
"""For a quick run, which only shows that it works."""

QUEUE = """
    INSERT INTO scheduled_tasks (task_type, payload, run_at, max_retries)
    SELECT 'hold', jsonb_build_object('gate', %s::text), now(), 1000 FROM generate_series(1, %s)
"""
REAPED = """
    SELECT max(date_part('epoch', failed_at)), count(DISTINCT task_id) FROM pgsched_failures WHERE outcome = 'lost'
"""


def recovery(bench: Bench) -> list[Result]:
    """Measure the three."""
    return [*_worker_is_killed(bench), *_supervisor_starts_again(bench), *_other_host_takes_over(bench)]


class Gate:
    """What keeps tasks from ending: a lock on a file. Each notes its start beside the file and waits for the lock."""

    def __init__(self, path: Path, file: TextIO, connection: psycopg.Connection[Any]) -> None:
        self._path = path
        self._file = file
        self._connection = connection

    def open(self) -> None:
        """Let all tasks end, so that their supervisor can stop without waiting for them."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def queue(self, tasks: int) -> None:
        """Queue so many of them."""
        self._connection.execute(QUEUE, [str(self._path), tasks])

    def starts(self) -> list[tuple[int, ...]]:
        """Task id, pid and moment of each start so far."""
        return stamps.read(Path(f"{self._path}.starts"))


@contextmanager
def _gate(path: Path, connection: psycopg.Connection[Any]) -> Iterator[Gate]:
    """A gate that is shut until it is opened, the body ends, or this process does."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Gate(path, file, connection)


def _worker_is_killed(bench: Bench) -> list[Result]:
    requeued: list[float] = []
    ready: list[float] = []
    with (
        psycopg.connect(bench.dsn, autocommit=True) as connection,
        supervisor(bench.dsn, bench.processes),
        _gate(bench.scratch / "worker", connection) as gate,
    ):
        gate.queue(bench.processes)
        _until(lambda: len(gate.starts()) == bench.processes, "the tasks did not start")
        for kill in range(2 if bench.quick else 20):
            bench.progress(f"kill of worker number {kill + 1}")
            for figures, milliseconds in zip((requeued, ready), _kill_worker(gate, connection), strict=True):
                figures.append(milliseconds)
    return [
        Result("worker_requeue_ms", percentile(requeued, 50), "ms"),
        Result("worker_requeue_max_ms", max(requeued), "ms"),
        # To the first line of the task that then runs in a new process: claim and dispatch are part of it.
        Result("slot_ready_ms", percentile(ready, 50), "ms"),
        Result("slot_ready_max_ms", max(ready), "ms"),
    ]


def _kill_worker(gate: Gate, connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Kill the worker of the task that started last; milliseconds until that is queued again and until another runs."""
    # Somebody must be waiting for the place.
    gate.queue(1)
    time.sleep(STEADY)
    starts = gate.starts()
    task_id, pid, _ = starts[-1]
    retries = _retries(connection, task_id)
    killed_at = stamps.now()
    os.kill(pid, signal.SIGKILL)
    _until(lambda: _retries(connection, task_id) > retries, "the task was not queued again", 0.0003)
    requeued_at = stamps.now()
    _until(lambda: len(gate.starts()) > len(starts), "no other task started")
    _, _, started_at = gate.starts()[len(starts)]
    return (requeued_at - killed_at) / 1e6, (started_at - killed_at) / 1e6


def _retries(connection: psycopg.Connection[Any], task_id: int) -> int:
    [[retries]] = connection.execute("SELECT retry_count FROM scheduled_tasks_live WHERE id = %s", [task_id]).fetchall()
    return int(retries)


def _supervisor_starts_again(bench: Bench) -> list[Result]:
    from_registered: list[float] = []
    from_start: list[float] = []
    for kill in range(1 if bench.quick else 5):
        bench.progress(f"restart number {kill + 1}")
        with (
            bench.server.fresh() as dsn,
            psycopg.connect(dsn, autocommit=True) as connection,
            _gate(bench.scratch / f"restart{kill}", connection) as gate,
        ):
            with supervisor(dsn, bench.processes) as victim:
                _occupy(gate, bench.processes)
                _kill(victim)
            started_at = _server_clock(connection)
            with supervisor(dsn, bench.processes) as successor:
                reaped_at = _reaped(connection, bench.processes)
                from_registered.append((reaped_at - _registered_at(connection, successor)) * 1e3)
                from_start.append((reaped_at - started_at) * 1e3)
                gate.open()
    return [
        # From the moment at which the new supervisor registered.
        Result("restart_takeover_ms", percentile(from_registered, 50), "ms"),
        # From the start of its process, so with the interpreter and the imports.
        Result("restart_takeover_from_exec_ms", percentile(from_start, 50), "ms"),
    ]


def _other_host_takes_over(bench: Bench) -> list[Result]:
    hasty = HASTY if bench.quick else ()
    with (
        bench.server.fresh() as dsn,
        psycopg.connect(dsn, autocommit=True) as connection,
        _gate(bench.scratch / "takeover", connection) as gate,
        supervisor(dsn, bench.processes, *hasty) as victim,
    ):
        _occupy(gate, bench.processes)
        with supervisor(dsn, bench.processes, *hasty):
            # By this alone a supervisor knows who else is on its host: now it has to wait for the lease.
            connection.execute("UPDATE pgsched_supervisors SET boot_id = 'another host' WHERE pid = %s", [victim.pid])
            time.sleep(STEADY)
            bench.progress("waiting for the lease of a dead supervisor to run out")
            killed_at = _server_clock(connection)
            _kill(victim)
            seconds = _reaped(connection, bench.processes) - killed_at
            gate.open()
    return [Result("takeover_s", seconds, "s")]


def _occupy(gate: Gate, processes: int) -> None:
    """Have every worker run a task that does not end."""
    gate.queue(processes)
    _until(lambda: len(gate.starts()) == processes, "the tasks did not start")
    time.sleep(STEADY)


def _kill(victim: Supervisor) -> None:
    victim.process.kill()
    victim.process.wait()


def _reaped(connection: psycopg.Connection[Any], tasks: int) -> float:
    """Wait until as many tasks have been taken over and queued again; when the last one was, by the server's clock."""
    found: list[float] = []

    def reaped() -> bool:
        [[at, count]] = connection.execute(REAPED).fetchall()
        found[:] = [at]
        return bool(count >= tasks)

    _until(reaped, "the tasks were not taken over", 0.02)
    return found[0]


def _registered_at(connection: psycopg.Connection[Any], successor: Supervisor) -> float:
    query = "SELECT date_part('epoch', registered_at) FROM pgsched_supervisors WHERE pid = %s"
    [[at]] = connection.execute(query, [successor.pid]).fetchall()
    return float(at)


def _server_clock(connection: psycopg.Connection[Any]) -> float:
    [[at]] = connection.execute("SELECT date_part('epoch', clock_timestamp())").fetchall()
    return float(at)


def _until(condition: Callable[[], bool], failure: str, pause: float = 0.001) -> None:
    deadline = time.monotonic() + LATE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{failure} within {LATE:g} s")
        time.sleep(pause)
