"""The wire: a closed set of frames between the parent and one worker, one datagram a frame.

The parent sends Boot, Run and Stop; a worker answers with Ready and Reports. Payloads and results pass as UTF-8 that
the parent never parses. A payload over 64 KiB travels in a memfd beside its frame, so that a frame is sent whole or
refused; a long report is preceded by parts, because a worker may wait for room and the parent may not. Both
processes use this module; it keeps no state.
"""

import array
import json
import os
import socket
import struct
import zlib
from typing import Any, Final, NamedTuple

from pgsched.model import Claim, Failure

BOOT: Final = 1
RUN: Final = 2
RUN_LARGE: Final = 3
STOP: Final = 4
READY: Final = 5
REPORTS: Final = 6
PART: Final = 7
LAST: Final = 8

RETURNED: Final = 0
RAISED: Final = 1

BRIEF: Final = 1
"""Flag of a run: it is expected to be over in no time, so reports may wait for its end."""
WORN: Final = 1
"""Flag of a report: the worker has grown over its memory size."""

LIMIT: Final = 65536
"""Bytes of a frame."""
_MOST_PARTS: Final = 1024
"""No frame of ours is so long."""
_ROOM: Final = socket.CMSG_SPACE(4 * 4)
_RUN: Final = struct.Struct("<BIBqiiddHH")
REPORTS_HEAD: Final = struct.Struct("<Bd")
_REPORT: Final = struct.Struct("<IBBd")
_RECORD: Final = struct.Struct("<II")
END_MARK: Final = _RECORD.size
NO_RECORD: Final = bytes(END_MARK)
"""Stands after the last record in shared memory."""
_SEQUENCE: Final = struct.Struct("<xI")
_CLOEXEC: Final = socket.MSG_CMSG_CLOEXEC


class ProtocolError(Exception):
    """The other side sent what is no frame: something else writes to its socket."""


class Run(NamedTuple):
    """One attempt to make."""

    sequence: int
    """Numbers the frames of one worker; its report repeats it."""
    brief: bool
    task_id: int
    task_type: str
    queue: str
    attempt: int
    max_retries: int
    timeout: float
    """Seconds; infinite without a limit."""
    due: float
    """The task's ``run_at`` on the monotonic clock."""
    payload: str


class Report(NamedTuple):
    """How one attempt ended."""

    sequence: int
    code: int
    """RETURNED or RAISED."""
    flags: int
    seconds: float
    body: str
    """RETURNED: the result as JSON, empty for None. RAISED: see :func:`decode_failure`."""


def encode_run(sequence: int, claim: Claim, timeout: float, due: float, brief: bool) -> bytes:
    """The frame of a claim whose payload is short."""
    task_type, queue = claim.task_type.encode(), claim.queue.encode()
    return (
        _RUN.pack(
            RUN,
            sequence,
            BRIEF if brief else 0,
            claim.task_id,
            claim.retry_count + 1,
            claim.max_retries,
            timeout,
            due,
            len(task_type),
            len(queue),
        )
        + task_type
        + queue
        + claim.payload.encode()
    )


def send_run(sock: socket.socket, frame: bytes, claim: Claim) -> bool:
    """Send what :func:`encode_run` made, or return False where the socket has no room. Never blocks.

    :raises OSError: no memory for a large payload.
    """
    try:
        if len(frame) <= LIMIT:
            sock.send(frame, socket.MSG_DONTWAIT)
            return True
        payload = claim.payload.encode()
        head = bytes((RUN_LARGE,)) + frame[1 : len(frame) - len(payload)]
        memory = os.memfd_create("pgsched-payload", os.MFD_CLOEXEC)
        try:
            _write_all(memory, payload)
            _send_with(sock, head, [memory], socket.MSG_DONTWAIT)
        finally:
            os.close(memory)
        return True
    except BlockingIOError:
        return False


def decode_run(frame: bytes, descriptors: list[int]) -> Run:
    """Read a Run in the worker; closes the descriptors."""
    try:
        head = _RUN.unpack_from(frame)
        kind, sequence, flags, task_id, attempt, max_retries, timeout, due, type_size, queue_size = head
        middle = _RUN.size + type_size
        end = middle + queue_size
        payload = frame[end:] if kind == RUN else _read_all(descriptors[0])
        return Run(
            sequence,
            bool(flags & BRIEF),
            task_id,
            frame[_RUN.size : middle].decode(),
            frame[middle:end].decode(),
            attempt,
            max_retries,
            timeout,
            due,
            payload.decode(),
        )
    except (struct.error, ValueError, IndexError) as error:
        raise ProtocolError(f"broken frame: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def sequence_of(frame: bytes) -> int:
    """The number of a Run that was taken back."""
    return int(_SEQUENCE.unpack_from(frame)[0])


def encode_report(sequence: int, code: int, flags: int, seconds: float, body: str) -> bytes:
    """A Report as a record of any length."""
    report = _REPORT.pack(sequence, code, flags, seconds) + body.encode()
    return _RECORD.pack(len(report), zlib.crc32(report)) + report


def encode_head(cpu_seconds: float) -> bytes:
    """What stands before the records of a Reports frame.

    :param cpu_seconds: of the worker and its ended children, since its birth.
    """
    return REPORTS_HEAD.pack(REPORTS, cpu_seconds)


def decode_reports(frame: bytes) -> tuple[float, list[Report]]:
    """Read a Reports frame in the parent: CPU seconds, and the reports in the order of their ends.

    :raises ProtocolError: it is none.
    """
    try:
        _, cpu_seconds = REPORTS_HEAD.unpack_from(frame)
    except struct.error as error:
        raise ProtocolError(f"broken reports: {error}") from error
    reports, end = _records(frame)
    if end != len(frame):
        raise ProtocolError(f"broken reports: {len(frame) - end} bytes are no record")
    return cpu_seconds, reports


def salvage(memory: bytes) -> list[Report]:
    """The whole reports in the memory that a worker shares, which it may be writing to: sent ones may be among them."""
    return _records(memory)[0]


def _records(frame: bytes) -> tuple[list[Report], int]:
    """The records up to the first that is not whole, and where that begins."""
    reports = []
    at = REPORTS_HEAD.size
    while len(frame) - at >= _RECORD.size:
        size, check = _RECORD.unpack_from(frame, at)
        begin = at + _RECORD.size
        report = frame[begin : begin + size]
        if size < _REPORT.size or len(report) < size or zlib.crc32(report) != check:
            break
        sequence, code, flags, seconds = _REPORT.unpack_from(report)
        try:
            body = report[_REPORT.size :].decode()
        except UnicodeDecodeError:
            break
        reports.append(Report(sequence, code, flags, seconds, body))
        at = begin + size
    return reports, at


def encode_failure(failure: Failure) -> str:
    """The body of a report that says RAISED."""
    return json.dumps(
        {
            "error": failure.error,
            "traceback": failure.traceback,
            "peak_memory": failure.peak_memory,
            "out_of_memory": failure.out_of_memory,
        },
        ensure_ascii=False,
    )


def decode_failure(body: str) -> Failure:
    """The opposite of :func:`encode_failure`.

    :raises ProtocolError: it is none.
    """
    try:
        return Failure(**json.loads(body))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"broken failure: {error}") from error


def encode_message(kind: int, content: Any) -> bytes:
    """A Boot or Ready frame."""
    return bytes((kind,)) + json.dumps(content).encode()


def decode_message(frame: bytes) -> Any:
    """What :func:`encode_message` took.

    :raises ProtocolError: it is no JSON.
    """
    try:
        return json.loads(frame[1:])
    except ValueError as error:
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
