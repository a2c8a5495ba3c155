"""The control page: shared memory of one worker, in which the parent says why a task should stop.

The parent writes, the worker and its task only read; neither waits for the other. Behind the page, in the same memfd,
reports wait that are not sent yet (``outbox.py``), and then faulthandler leaves the stacks of all threads when the soft
signal arrives. Used by both processes.
"""

import mmap
import os
import struct
from typing import Final, NamedTuple

from pgsched.model import OutcomeKind

SIZE: Final = 4096
"""Bytes of the page; the outbox begins here."""
OUTBOX: Final = 16 * 1024
"""Bytes of the outbox."""
_STACKS: Final = SIZE + OUTBOX
STACK_LIMIT: Final = 64 * 1024
"""Bytes of stacks that the parent reads."""

_HEAD: Final = struct.Struct("<II")
_SEQUENCE: Final = struct.Struct("<I")


class Stop(NamedTuple):
    """What the page says about a task."""

    kind: OutcomeKind
    reason: str


class ControlPage:
    """The parent's side.

    :raises OSError: no memory or no descriptor is left.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("pgsched-page", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _STACKS)
        os.lseek(self.descriptor, _STACKS, os.SEEK_SET)

    def ask(self, sequence: int, kind: OutcomeKind, reason: str) -> None:
        """Say that the run with this number should stop."""
        # "replace" only cuts a character in two at the end; reasons are made here.
        text = f"{kind}\n{reason}".encode(errors="replace")[: SIZE - _HEAD.size]
        os.pwrite(self.descriptor, struct.pack("<I", len(text)) + text, _SEQUENCE.size)
        # The number comes last: whoever sees it sees the text too.
        os.pwrite(self.descriptor, _SEQUENCE.pack(sequence), 0)

    def outbox(self) -> bytes:
        """What is in the worker's outbox; see :func:`pgsched.pool.records.salvage`."""
        return os.pread(self.descriptor, OUTBOX, SIZE)

    def stack(self) -> str | None:
        """The stacks that the worker has left, or None."""
        dump = os.pread(self.descriptor, STACK_LIMIT, _STACKS)
        return dump.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}") or None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


class PageView:
    """The worker's side.

    :param descriptor: of the memfd; stays open, because faulthandler writes to it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, _STACKS)
        self.outbox = memoryview(self._map)[SIZE:]

    def asked(self, sequence: int) -> Stop | None:
        """What the parent says about the run with this number; None: go on."""
        number, size = _HEAD.unpack_from(self._map)
        if number != sequence:
            return None
        kind, _, reason = self._map[_HEAD.size : _HEAD.size + size].decode(errors="replace").partition("\n")
        return Stop(OutcomeKind(kind), reason)
