"""The least that a pickup can cost here: one process that is woken and claims, one that works, and nothing else.

What pgsched does beside that, such as leases, fences, limits, metrics and many slots, is left out: it waits for a
notification, claims one row by the same kind of statement with a durable commit, and writes its payload into a pipe. So
it is the floor under ``latency``, on the same server in the same run. No part of pgsched is used but the stamps.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.stamps import note, now

TABLE = """
    CREATE TABLE bare_tasks (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL, run_at timestamptz NOT NULL,
        status text NOT NULL DEFAULT 'queued', fence bigint NOT NULL DEFAULT 0);
    CREATE INDEX ON bare_tasks (run_at, id) WHERE status = 'queued';
"""
WAKE = """
    CREATE FUNCTION bare_wake() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_notify('bare', ''); RETURN NULL; END $$;
    CREATE TRIGGER wake AFTER INSERT ON bare_tasks FOR EACH STATEMENT EXECUTE FUNCTION bare_wake();
"""
NOW = """
    INSERT INTO bare_tasks (payload, run_at)
    VALUES (jsonb_build_object('path', %s::text, 'number', %s::integer), now())
"""
CLAIM = b"""
    UPDATE bare_tasks AS task SET status = 'processing', fence = task.fence + 1
    FROM (SELECT id FROM bare_tasks WHERE status = 'queued' AND run_at <= now() ORDER BY run_at, id LIMIT 10
          FOR UPDATE SKIP LOCKED) AS due
    WHERE task.id = due.id
    RETURNING task.payload::text
"""
ROW = 4096
"""Bytes of one payload at most: a pipe takes such a write as a whole."""
READY_WITHIN = 20.0


@contextmanager
def bare(dsn: str, connection: psycopg.Connection) -> Iterator[None]:
    """Run the two processes until the body ends.

    :param connection: makes what they need.
    :raises RuntimeError: they do not start.
    """
    connection.execute(TABLE)
    connection.execute(WAKE)
    command = [sys.executable, "-m", "benchmarks.bare"]
    process = subprocess.Popen(command, env={**os.environ, "PGSCHED_DSN": dsn}, start_new_session=True)
    try:
        _wait_until_it_listens(connection, process)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(connection: psycopg.Connection, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_WITHIN
    query = "SELECT FROM pg_stat_activity WHERE application_name = 'pgsched bare' AND query LIKE 'LISTEN%'"
    while not connection.execute(query).rowcount:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the bare claimer does not start")
        time.sleep(0.01)


def _work(pipe: int) -> None:
    while payload := os.read(pipe, ROW):
        # The first line of the task.
        at, wall = now(), time.time_ns()
        task = json.loads(payload)
        note(task["path"], task["number"], at, wall)


def _main() -> None:
    reading, writing = os.pipe()
    if not os.fork():
        os.close(writing)
        _work(reading)
        os._exit(0)
    os.close(reading)
    with psycopg.connect(os.environ["PGSCHED_DSN"], autocommit=True, application_name="pgsched bare") as connection:
        connection.execute("LISTEN bare")
        while True:
            next(connection.notifies(stop_after=1), None)
            for (payload,) in connection.execute(CLAIM, prepare=True):
                os.write(writing, payload.encode())


if __name__ == "__main__":
    _main()
