"""The wire: a closed set of frames between the parent and one worker, one datagram a frame, and the tickets beside it.

The parent sends Boot and Runs; a worker answers with Ready and Reports. To have received a run is nothing: its ticket,
a number on a second socket, is the permission to begin it. So the parent can take a run back as long as the worker has
not taken the ticket, and the kernel decides who got each one. Payloads and results pass as UTF-8 that the parent never
parses. A payload over 64 KiB travels in a memfd beside its frame, so that a frame is sent whole or refused; a long
frame of a worker is preceded by parts, because a worker may wait for room and the parent may not. Both processes use
this module; it keeps no state.
"""

import array
import json
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from pgsched.model import Claim

BOOT: Final = 1
RUNS: Final = 2
RUN_LARGE: Final = 3
READY: Final = 5
REPORTS: Final = 6
PART: Final = 7
LAST: Final = 8

BRIEF: Final = 1
"""Flag of a run: it is expected to be over in no time, so reports may wait for its end."""

LIMIT: Final = 65536
"""Bytes of a frame."""
_MOST_PARTS: Final = 1024
"""No frame of ours is so long."""
_ROOM: Final = socket.CMSG_SPACE(4 * 4)
_RUN: Final = struct.Struct("<IBqiqiddHHI")
_TICKET: Final = struct.Struct("<I")
TICKET_SIZE: Final = _TICKET.size
STOP: Final = bytes(TICKET_SIZE)
"""The ticket that ends a worker."""
_CLOEXEC: Final = socket.MSG_CMSG_CLOEXEC
_RUNS: Final = bytes((RUNS,))


class ProtocolError(Exception):
    """The other side sent what is no frame: something else writes to its socket."""


class Run(NamedTuple):
    """One attempt to make."""

    sequence: int
    """Numbers the runs of one worker, from 1; its ticket and its report repeat it."""
    brief: bool
    task_id: int
    task_type: str
    queue: str
    attempt: int
    fence: int
    max_retries: int
    timeout: float
    """Seconds; infinite without a limit."""
    due: float
    """The task's ``run_at`` on the monotonic clock."""
    payload: str


def adopt(descriptor: int) -> socket.socket:
    """The socket behind a descriptor that this process was given, which is ours now.

    It waits for as long as it takes: a timeout that the user's module has set for all new sockets is not for it.
    """
    sock = socket.socket(fileno=descriptor)
    sock.settimeout(None)
    return sock


def encode_run(sequence: int, claim: Claim, timeout: float, due: float, brief: bool) -> bytes:
    """A Run as a record of any length."""
    task_type, queue, payload = claim.task_type.encode(), claim.queue.encode(), claim.payload.encode()
    return (
        _RUN.pack(
            sequence,
            BRIEF if brief else 0,
            claim.task_id,
            claim.retry_count + 1,
            claim.fence,
            claim.max_retries,
            timeout,
            due,
            len(task_type),
            len(queue),
            len(payload),
        )
        + task_type
        + queue
        + payload
    )


def send_runs(sock: socket.socket, records: Sequence[bytes]) -> int:
    """Send what :func:`encode_run` made; return how many found room. Never blocks.

    :raises OSError: no memory for a large payload, or nobody is there.
    """
    sent = 0
    try:
        while sent < len(records):
            end, size = sent, 1
            while end < len(records) and (size := size + len(records[end])) <= LIMIT:
                end += 1
            if end == sent:
                _send_large(sock, records[sent])
                end += 1
            else:
                sock.send(b"".join((_RUNS, *records[sent:end])), socket.MSG_DONTWAIT)
            sent = end
    except BlockingIOError:
        # Those before have been sent.
        return sent
    return sent


def _send_large(sock: socket.socket, record: bytes) -> None:
    payload_size = _RUN.unpack_from(record)[-1]
    memory = os.memfd_create("pgsched-payload", os.MFD_CLOEXEC)
    try:
        _write_all(memory, record[len(record) - payload_size :])
        head = bytes((RUN_LARGE,)) + record[: len(record) - payload_size]
        _send_with(sock, head, [memory], socket.MSG_DONTWAIT)
    finally:
        os.close(memory)


def decode_runs(frame: bytes, descriptors: list[int]) -> list[Run]:
    """Read the runs of a frame in the worker; closes the descriptors.

    :raises ProtocolError: it is none.
    """
    runs = []
    try:
        large = _read_all(descriptors[0]) if frame[0] == RUN_LARGE else None
        at = 1
        while at < len(frame):
            head = _RUN.unpack_from(frame, at)
            sequence, flags, task_id, attempt, fence, max_retries, timeout, due, *sizes = head
            type_size, queue_size, payload_size = sizes
            names = at + _RUN.size
            middle = names + type_size
            end = middle + queue_size
            at = end if large is not None else end + payload_size
            payload = frame[end:at] if large is None else large
            runs.append(
                Run(
                    sequence,
                    bool(flags & BRIEF),
                    task_id,
                    frame[names:middle].decode(),
                    frame[middle:end].decode(),
                    attempt,
                    fence,
                    max_retries,
                    timeout,
                    due,
                    payload.decode(),
                )
            )
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"broken frame: {error}") from error
    finally:
        close_all(descriptors)
    return runs


def first_sequence(frame: bytes) -> int:
    """The number of the first run of a frame that the parent has sent."""
    return int(_TICKET.unpack_from(frame, 1)[0])


def send_back(sock: socket.socket, frame: bytes, descriptors: list[int]) -> None:
    """Send a received frame once more; closes the descriptors."""
    try:
        _send_with(sock, frame, descriptors, socket.MSG_DONTWAIT)
    finally:
        close_all(descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close what came beside a frame."""
    for descriptor in descriptors:
        os.close(descriptor)


def encode_tickets(sequences: Iterable[int]) -> bytes:
    """Tickets for some runs."""
    return b"".join(map(_TICKET.pack, sequences))


def decode_tickets(tickets: bytes) -> list[int]:
    """The numbers on some tickets; one that is torn is none."""
    whole = len(tickets) - len(tickets) % TICKET_SIZE
    return [number for (number,) in _TICKET.iter_unpack(tickets[:whole])]


def encode_message(kind: int, content: Any) -> bytes:
    """A Boot or Ready frame."""
    return bytes((kind,)) + json.dumps(content).encode()


def decode_message(frame: bytes) -> Any:
    """What :func:`encode_message` took.

    :raises ProtocolError: it is no JSON.
    """
    try:
        return json.loads(frame[1:])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"broken message: {error}") from error


def send_long(sock: socket.socket, frame: bytes) -> None:
    """Send a frame of any length, in parts where it is too long; waits for room."""
    if len(frame) <= LIMIT:
        sock.send(frame)
        return
    size = LIMIT - 1
    for start in range(0, len(frame), size):
        kind = PART if start + size < len(frame) else LAST
        sock.send(bytes((kind,)) + frame[start : start + size])


class Parts:
    """Puts together what :func:`send_long` took apart; one per worker."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def whole(self, frame: bytes) -> bytes | None:
        """Take the next datagram; return the frame that it completes, or None.

        :raises ProtocolError: it is none of ours.
        """
        if not frame or len(self._parts) > _MOST_PARTS:
            raise ProtocolError("empty frame" if not frame else "endless frame")
        if frame[0] not in (PART, LAST):
            return frame
        self._parts.append(frame[1:])
        if frame[0] == PART:
            return None
        frame = b"".join(self._parts)
        self._parts.clear()
        if not frame:
            raise ProtocolError("empty frame")
        return frame


def send_message(sock: socket.socket, kind: int, content: Any, descriptors: list[int]) -> None:
    """Send a message and descriptors without blocking.

    :raises BlockingIOError: no room.
    """
    _send_with(sock, encode_message(kind, content), descriptors, socket.MSG_DONTWAIT)


def receive(sock: socket.socket, flags: int = 0) -> tuple[bytes, list[int]]:
    """One datagram and the descriptors beside it, which are the caller's to close; empty at the end of file."""
    frame, ancillary, _, _ = sock.recvmsg(LIMIT, _ROOM, flags | _CLOEXEC)
    if not ancillary:
        return frame, []
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return frame, list(descriptors)


def _send_with(sock: socket.socket, frame: bytes, descriptors: list[int], flags: int) -> None:
    rights = array.array("i", descriptors)
    sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else [], flags)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts = []
    offset = 0
    while offset < size and (part := os.pread(descriptor, size - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
