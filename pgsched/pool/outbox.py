"""Reports of tiny tasks on their way to the parent: several to a datagram, and none lost with the worker.

A report waits here, in shared memory, while the next tiny task is at hand already: so the two system calls that a
report costs are paid once for many. The parent reads the memory too, when the worker has died, and when it seems to be
at one task for long (``records.salvage``), where it may meet a report twice: it knows it by its number. In the worker.
"""

import socket
from collections.abc import Callable
from typing import Final

from pgsched.pool import records, wire

HOLD: Final = 0.001
"""Seconds that a report may wait while tiny tasks go on."""
MOST: Final = 32
"""Reports to a datagram: more saves next to nothing."""


class Outbox:
    """One worker's reports that are not sent yet.

    :param memory: shared with the parent.
    :param check: raises OSError when the socket is not ours any more; called before anything is sent.
    :param cpu_seconds: what the process has used; asked once for each datagram.
    """

    def __init__(
        self, sock: socket.socket, memory: memoryview, check: Callable[[], None], cpu_seconds: Callable[[], float]
    ) -> None:
        self._sock = sock
        self._memory = memory
        self._check = check
        self._cpu_seconds = cpu_seconds
        self._end = records.HEAD.size
        self._since = 0.0
        self.count = 0

    def put(self, record: bytes, now: float, *, failed: bool = False) -> None:
        """Take a report; it is sent now if it is too long to wait, or others have waited for long.

        :param now: monotonic.
        :param failed: somebody may want to know what it cost, be it found in memory.
        :raises OSError: the socket does not work any more.
        """
        end = self._end + len(record)
        if end + records.END_MARK > len(self._memory):
            self.flush()
            end = self._end + len(record)
            if end + records.END_MARK > len(self._memory):
                self._check()
                wire.send_long(self._sock, records.encode_head(self._cpu_seconds()) + record)
                return
        if failed:
            self._memory[: records.HEAD.size] = records.encode_head(self._cpu_seconds())
        # The mark first: until the record is whole, the parent finds the end, or a record whose check fails.
        self._memory[end : end + records.END_MARK] = records.NO_RECORD
        self._memory[self._end : end] = record
        self._end = end
        if not self.count:
            self._since = now
        self.count += 1
        if self.count >= MOST or now - self._since >= HOLD:
            self.flush()

    def flush(self) -> None:
        """Send what waits, if anything does; waits for room.

        :raises OSError: the socket does not work any more.
        """
        if not self.count:
            return
        self._check()
        self._memory[: records.HEAD.size] = records.encode_head(self._cpu_seconds())
        self._sock.send(self._memory[: self._end])
        self._end = records.HEAD.size
        self._memory[self._end : self._end + records.END_MARK] = records.NO_RECORD
        self.count = 0
