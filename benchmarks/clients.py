"""Clients that repeat one statement, several at once: a thread each, in libpq nearly all of its time.

libpq itself is used, because a driver's work in Python, under one lock for all threads, would be most of what is
measured.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from psycopg import pq

from pgsched.store.redaction import one_line
from tests.article import text

NAME = b"statement"
ARTICLE = {"article_table": "snippet_1", "claim_article": "snippet_5_claim"}
"""Statements that are the article's to the letter."""
DEADLOCK, OUT_OF_MEMORY = "40P01", "53200"


class OutOfLocks(Exception):
    """The server's max_locks_per_transaction is too small for this."""


class Client:
    """One session that runs one prepared statement.

    :raises RuntimeError: the server cannot be reached, or does not take the statement.
    """

    def __init__(self, dsn: str, statement: bytes, settings: Sequence[bytes] = ()) -> None:
        self._connection = pq.PGconn.connect(dsn.encode())
        if self._connection.status != pq.ConnStatus.OK:
            raise RuntimeError(one_line(self._connection.error_message.decode(errors="replace")))
        for setting in settings:
            self._checked(self._connection.exec_(setting))
        self._checked(self._connection.prepare(NAME, statement))

    def run(self, *parameters: object) -> pq.abc.PGresult | None:
        """Run the statement, committed at once; None when it met a deadlock."""
        values = [str(parameter).encode() for parameter in parameters]
        return self._checked(self._connection.exec_prepared(NAME, values))

    def close(self) -> None:
        """End the session."""
        self._connection.finish()

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult | None:
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return result
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        if state == DEADLOCK:
            return None
        message = one_line(result.error_message.decode(errors="replace"))
        raise (OutOfLocks if state == OUT_OF_MEMORY else RuntimeError)(message)


class Repeated(NamedTuple):
    """What several callers did at once."""

    rows: int
    seconds: float
    """From the common start to the end of the last one."""
    times: list[float]
    """Seconds of each call."""


def repeat(calls: Sequence[Callable[[], int]], seconds: float, rows: int | None = None) -> Repeated:
    """Repeat each of these, all at once, each in a thread.

    :param calls: do their work once, and return with how many rows.
    :param rows: stop when all together have had so many.
    """
    barrier = threading.Barrier(len(calls))
    lock = threading.Lock()
    had = 0

    def loop(call: Callable[[], int]) -> tuple[float, float, list[float]]:
        nonlocal had
        times = []
        barrier.wait()
        began = now = time.perf_counter()
        while now - began < seconds and (rows is None or had < rows):
            count = call()
            before, now = now, time.perf_counter()
            times.append(now - before)
            with lock:
                had += count
        return began, now, times

    with ThreadPoolExecutor(len(calls)) as threads:
        loops = list(threads.map(loop, calls))
    span = max(end for _, end, _ in loops) - min(begin for begin, _, _ in loops)
    return Repeated(had, span, [each for _, _, times in loops for each in times])


def statement(name: str) -> bytes:
    """The text of ``benchmarks/sql/NAME.sql``, or what the article says."""
    if name in ARTICLE:
        return text(ARTICLE[name]).encode()
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_bytes()
