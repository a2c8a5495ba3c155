"""What workers write to their standard output and error: read without blocking, passed on, the end kept.

Each worker has a pipe of its own, dropped with it: a process that the worker left behind may hold the other end for
ever, so nobody waits for the end of file. Runs in the parent, in the loop.
"""

import os
import select
import signal
import socket
import stat
from collections.abc import Callable
from typing import Final

TAIL: Final = 4096
"""Bytes kept of an attempt's output."""
TAIL_LINES: Final = 20
_READ: Final = 65536
_LINE: Final = 8192
"""Bytes of a line that are passed on in one piece."""


class Sink:
    """The parent's own standard error, which must not be able to stop the parent.

    What cannot be written at once is dropped: a reader that has stopped costs its lines and nothing else.

    :param descriptor: to write to; it is not changed, for other processes share its flags.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self.dropped = 0
        """Bytes that found no room."""
        self._torn = False
        self._write: Callable[[bytes], int]
        self._close: Callable[[], None] = lambda: None
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            self._write = len
            return
        if stat.S_ISSOCK(mode):
            sock = socket.socket(fileno=os.dup(descriptor))
            self._write = lambda data: sock.send(data, socket.MSG_DONTWAIT)
            self._close = sock.close
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            self._open_anew(descriptor)
        else:
            self._write = lambda data: os.write(descriptor, data)

    def _open_anew(self, descriptor: int) -> None:
        """A second opening of the same pipe or terminal has flags of its own."""
        try:
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            # It belongs to another user, as in a container that gave up its rights. A pipe that polls as
            # writable has room for PIPE_BUF bytes.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)

            def write(data: bytes) -> int:
                written = 0
                while written < len(data) and poll.poll(0):
                    written += os.write(descriptor, data[written : written + select.PIPE_BUF])
                return written

            self._write = write
        else:
            self._write = lambda data: os.write(own, data)
            self._close = lambda: os.close(own)
        if os.isatty(descriptor):
            self._write = _undisturbed(self._write)

    def write(self, data: bytes) -> None:
        """Write whole lines, or as much of them as there is room for. Never blocks, never raises."""
        if self._torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                count = self._write(data[written:])
                if not count:
                    break
                written += count
        except OSError:
            # No room, or nobody reads any more (EPIPE), or the disk is full.
            pass
        self.dropped += len(data) - written
        if written:
            self._torn = data[written - 1] != 0x0A

    def close(self) -> None:
        """Give back what was opened."""
        self._close()


def _undisturbed(write: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """A terminal may send SIGTTOU to who writes from the background, again and again, as long as he listens for it."""

    def without_signal(data: bytes) -> int:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        try:
            return write(data)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return without_signal


class Stream:
    """One worker's output.

    :param descriptor: the reading end of its pipe, which this object owns.
    """

    def __init__(self, descriptor: int, sink: Sink) -> None:
        self.descriptor = descriptor
        self.total = 0
        """Bytes read so far: a position in the output."""
        self.ended = False
        self._sink = sink
        self._tail = b""
        self._line = b""
        os.set_blocking(descriptor, False)

    def read(self) -> bool:
        """Read what is there, up to 64 KiB; whether there was anything."""
        try:
            data = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return False
        if not data:
            self.ended = True
            return False
        self.total += len(data)
        self._tail = (self._tail + data)[-TAIL:]
        data = self._line + data
        end = data.rfind(b"\n") + 1
        self._line = data[end:]
        if end:
            self._sink.write(data[:end])
        if len(self._line) > _LINE:
            self._sink.write(self._line + b"\n")
            self._line = b""
        return True

    def tail(self, since: int) -> str | None:
        """The last lines that were written after a position, or None."""
        length = min(self.total - since, len(self._tail))
        if length <= 0:
            return None
        text = self._tail[-length:].decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        return "".join(text.splitlines(keepends=True)[-TAIL_LINES:]) or None

    def close(self) -> None:
        """Read what is left, a bounded amount: somebody else may go on writing."""
        for _ in range(4):
            if not self.read():
                break
        if self._line:
            self._sink.write(self._line + b"\n")
            self._line = b""
        os.close(self.descriptor)
