"""What must not be left when a storm is over: processes, files, sessions, locks, and descriptors of supervisors."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.fleet import Seat
from tests.chaos.ledger import Violation
from tests.support import processes

SLACK = 0
"""Descriptors by which two idle supervisors may differ: a connection is opened when it is needed."""
SESSIONS = """
    SELECT application_name || ': ' || coalesce(state, '') || ' ' || left(query, 80) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database()
"""
LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


def check_running(seats: Sequence[Seat], usual: Mapping[int, Counter[str]]) -> Iterator[Violation]:
    """Of idle supervisors: no dead child is left uncollected, and nothing more is open than at the beginning."""
    for seat in seats:
        if seat.pid is None:
            continue
        if zombies := seat.zombies():
            yield Violation("zombie", None, f"seat {seat.number}: {zombies}")
        more = Counter(seat.descriptors()) - usual[seat.number]
        if more.total() > SLACK:
            yield Violation("descriptors", None, f"seat {seat.number}: {dict(more)} more than at the beginning")


def check_sessions(connection: psycopg.Connection[Any], *, running: bool) -> Iterator[Violation]:
    """No advisory lock, no open transaction; and no session at all once the supervisors have stopped."""
    rows = [str(text) for (text,) in connection.execute(SESSIONS).fetchall()]
    if left := [text for text in rows if not running or "idle in transaction" in text]:
        yield Violation("session", None, str(left))
    [(locks,)] = connection.execute(LOCKS).fetchall()
    if locks:
        yield Violation("advisory lock", None, f"{locks} are held")


def check_host(seats: Sequence[Seat], journal: Path, runtime: Path) -> Iterator[Violation]:
    """Once the supervisors have stopped: no process of theirs, and no file.

    :param runtime: where they were told to keep what others keep in shared memory.
    """
    for seat in seats:
        if orphans := seat.left_behind():
            yield Violation("orphan", None, f"seat {seat.number}: {orphans}")
    ours = [found for found in processes() if not found.dead and _has(found.pid, str(journal))]
    if ours:
        yield Violation("orphan", None, str([(found.pid, found.name) for found in ours]))
    if files := [str(path) for path in runtime.rglob("*")]:
        yield Violation("shared memory", None, str(sorted(files)))


def _has(pid: int, text: str) -> bool:
    """Whether a process of ours was started for this storm."""
    if pid == os.getpid():
        return False
    try:
        return text.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
