"""Writes log lines to a descriptor from a thread, so that nobody who logs ever waits for a reader.

Standard error may be a pipe that nobody empties, a closed pipe, or a file on a full disk. Lines queue up to a bound;
beyond it they are dropped and counted, and the count is written as soon as there is room again. Making the
descriptor non-blocking instead would change it for everyone who shares it, the user's terminal included.
"""

import contextlib
import errno
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable

CAPACITY = 10_000
"""Lines that wait at most."""
CHUNK = 64 * 1024
"""Bytes that one write takes at most."""
INTERVAL = 5.0
"""Seconds between two questions for overdue lines."""


class LogWriter:
    """Owns a duplicate of a descriptor and the thread that writes to it.

    :param descriptor: None to write nothing.
    :param dropped_line: makes the line that tells how many were dropped.
    :param overdue: makes lines that are due by now; called in the thread every few seconds.
    """

    def __init__(
        self,
        descriptor: int | None,
        *,
        dropped_line: Callable[[int], bytes],
        overdue: Callable[[], list[bytes]] = list,
        capacity: int = CAPACITY,
    ) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped_line = dropped_line
        self._overdue = overdue
        self._capacity = capacity
        # Each counter has one writer: whoever logs (one at a time, under the handler's lock), or the thread.
        self._refused = 0
        self._lost = 0
        self._told = 0
        self._descriptor = -1
        if descriptor is not None:
            with contextlib.suppress(OSError):
                self._descriptor = os.dup(descriptor)
        # Asked now: one that has hung up answers no.
        self._terminal = os.isatty(self._descriptor)
        self._thread = threading.Thread(target=self._run, name="pgsched-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were never written."""
        return self._refused + self._lost

    def put(self, line: bytes) -> None:
        """Queue a line, with its line feed; never waits."""
        if self._lines.qsize() >= self._capacity:
            self._refused += 1
        else:
            self._lines.put(line)

    def close(self, timeout: float = 1.0) -> None:
        """Write what is queued and stop; give up after ``timeout`` seconds if nobody reads."""
        self._lines.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        # A terminal may send it to whoever writes from the background, again and again, as long as he listens for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        asked = time.monotonic()
        ending = False
        while not ending:
            batch, ending = self._gather(asked + INTERVAL - time.monotonic())
            if ending or time.monotonic() >= asked + INTERVAL:
                batch += self._overdue()
                asked = time.monotonic()
            self._write(batch)
        if self._descriptor >= 0:
            self._close()

    def _gather(self, timeout: float) -> tuple[list[bytes], bool]:
        """Take what is queued, up to a chunk, and whether that was the end; wait for the first line."""
        batch: list[bytes] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=max(timeout, 0.0))
            while line is not None:
                batch.append(line)
                size += len(line)
                if size >= CHUNK:
                    return batch, False
                line = self._lines.get_nowait()
            return batch, True
        return batch, False

    def _write(self, batch: list[bytes]) -> None:
        dropped = self.dropped - self._told
        if self._descriptor < 0:
            self._lost += len(batch)
            return
        lines = [self._dropped_line(dropped), *batch] if dropped else batch
        try:
            self._write_all(b"".join(lines))
        except OSError as error:
            self._lost += len(batch)
            if self._is_final(error):
                self._close()
        else:
            self._told += dropped

    def _is_final(self, error: OSError) -> bool:
        """Whether nothing will ever be written there again: a terminal is gone for good, a file system comes back."""
        return error.errno in (errno.EPIPE, errno.EBADF) or (error.errno == errno.EIO and self._terminal)

    def _close(self) -> None:
        # A network file system tells of an earlier write only now; there is nobody to tell.
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def _write_all(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest[:CHUNK]) :]
            except BlockingIOError:
                # Somebody else who shares it has made it non-blocking.
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll(1000)
