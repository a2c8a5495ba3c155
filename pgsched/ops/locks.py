"""Two file locks that say who uses the embedded server; the kernel drops them with their process, however that ends.

``gate`` is held for as long as somebody starts or stops the server, ``users`` (shared) for as long as somebody uses
it. Two files, because one lock cannot pass from exclusive to shared without a moment in which it is nobody's.
A forked child shares its parent's locks, and would keep them: it closes them at once, and has no use of the server.
Knows nothing of PostgreSQL.
"""

import fcntl
import os
import time
import weakref
from pathlib import Path

from pgsched.errors import DatabaseError


class Locks:
    """The locks of one use. The methods' order of use is: enter, alone, share, leave_gate; and later enter, alone.

    :param place: an existing directory of this user.
    :raises OSError: the files cannot be opened.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        # Python opens descriptors that a program started from here does not inherit: a worker that outlives its
        # supervisor must not count as a user.
        self._gate = os.open(place / "gate.lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._users = os.open(place / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        _opened.add(self)

    def enter(self, timeout: float) -> None:
        """Take the gate.

        :param timeout: seconds to wait for another process that starts or stops the server.
        :raises DatabaseError: it took longer.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseError(
                        f"another process has been starting or stopping the embedded server for {timeout:.0f} s "
                        f"(lock: {self._place / 'gate.lock'})"
                    ) from None
                time.sleep(0.02)

    def leave_gate(self) -> None:
        """Let others start or stop the server."""
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def alone(self) -> bool:
        """Whether nobody else uses the server. For a holder of the gate; it ends his own use."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A failed conversion may or may not have dropped the old lock; so that callers need not care, it is gone.
            fcntl.flock(self._users, fcntl.LOCK_UN)
            return False
        return True

    def share(self) -> None:
        """Begin a use. For a holder of the gate, so it never waits."""
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def close(self) -> None:
        """Drop both locks, also where a forked child that no hook of Python's has reached still has the files."""
        for descriptor in (self._gate, self._users):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close the files, for a forked child; the locks stay with the parent."""
        _opened.discard(self)
        os.close(self._gate)
        os.close(self._users)


_opened: weakref.WeakSet[Locks] = weakref.WeakSet()


def _abandon_all() -> None:
    for locks in list(_opened):
        locks.abandon()


os.register_at_fork(after_in_child=_abandon_all)
