"""The connection of its own over which an App enqueues: one per process, kept open, shared by its threads.

An INSERT whose reply was lost is never repeated, because nobody can know whether it was committed. So the
connection is looked at before it is used: one that the server has closed meanwhile is replaced before it can
lose anything, and one whose server falls silent is cut. Runs in the user's program, or in a worker whose task
enqueues.
"""

import os
import select
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pgsched.errors import DatabaseError, DeadlineError
from pgsched.model import NewTask

if TYPE_CHECKING:
    from psycopg import Connection

TIMEOUT = 10.0
"""Seconds that connecting, or an insert, may take."""
TIMEOUT_EACH = 0.005
"""Seconds more for each task of an insert."""


class _State:
    """What belongs to one process: its child must neither use the connection nor wait for the lock."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.connection: Connection[Any] | None = None
        self.known = False
        """Whether what the connection leads to is known, and so whether statements may be prepared."""

    def close(self) -> None:
        """Close the connection, but not in a child: it would end the parent's session."""
        if self.connection is not None and self.pid == os.getpid():
            self.connection.close()
        self.connection = None
        self.known = False


class Producer:
    """Inserts tasks over a connection that it opens when it first needs it.

    :param dsn: finds the connection string; called whenever a connection is opened.
    :param password: makes a password for it, in this process.
    """

    def __init__(self, dsn: Callable[[], str], password: Callable[[], str] | None = None) -> None:
        self._dsn = dsn
        self._password = password
        self._state = self._fresh()

    def _fresh(self) -> _State:
        state = _State()
        # Also at the interpreter's end: the server should not have to find out.
        weakref.finalize(self, state.close)
        return state

    def insert(self, tasks: Sequence[NewTask]) -> list[int]:
        """Insert and commit tasks, all or none; return their ids.

        :raises DatabaseError: it is not known to be done; after a lost or late reply it may be done all the same.
        """
        from pgsched.store.connection import PREPARE_AFTER
        from pgsched.store.enqueue import insert
        from pgsched.store.pooler import is_pooled

        state = self._own_state()
        with state.lock:
            connection = self._connect(state)
            try:
                with _deadline(connection, TIMEOUT + TIMEOUT_EACH * len(tasks)):
                    if not state.known:
                        # Twice as fast prepared, and impossible so through a pooler of transactions.
                        connection.prepare_threshold = None if is_pooled(connection) else PREPARE_AFTER
                        state.known = True
                    return insert(connection, tasks)
            except DatabaseError:
                # The server may have turned read-only, and refuse for ever what another one takes by now.
                state.close()
                raise

    def _own_state(self) -> _State:
        if self._state.pid != os.getpid():
            self._state = self._fresh()
        return self._state

    def _connect(self, state: _State) -> "Connection[Any]":
        from pgsched.store.connection import connect_sync
        from pgsched.store.passwords import Function, Passwords

        if state.connection is not None and (state.connection.closed or _spoken_to(state.connection.fileno())):
            state.close()
        if state.connection is None:
            source = None if self._password is None else Passwords(Function(self._password))
            state.connection = connect_sync(
                self._dsn(), timeout=TIMEOUT, application_name="pgsched enqueue", source=source, writable=True
            )
        return state.connection

    def close(self) -> None:
        """Close the connection; the next insert opens another."""
        state = self._own_state()
        with state.lock:
            state.close()


@contextmanager
def _deadline(connection: "Connection[Any]", seconds: float) -> Iterator[None]:
    """Cut the connection when the body takes longer: psycopg would wait for a silent server for ever."""
    from pgsched.store.connection import cut_after

    with cut_after(connection, seconds) as late:
        try:
            yield
        except DatabaseError:
            if late.is_set():
                raise DeadlineError(f"cannot enqueue: no answer from the database within {seconds:g} s") from None
            raise


def _spoken_to(descriptor: int) -> bool:
    """Whether the server has said something on a connection that waits for nothing: most likely good-bye."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
