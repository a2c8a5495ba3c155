"""Reports: what a worker says of the attempts that it has made, as records that may lie in shared memory.

A record has a check, because the parent may read it while it is written, or after its writer has died. Frames are
``wire.py``'s matter; how reports gather is ``outbox.py``'s. Both processes use this module; it keeps no state.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pgsched.model import Failure
from pgsched.pool.wire import REPORTS, ProtocolError

RETURNED: Final = 0
RAISED: Final = 1

WORN: Final = 1
"""Flag of a report: the worker has grown over its memory size."""
SPENT: Final = 2
"""Flag of a report: the worker can open nothing more."""

HEAD: Final = struct.Struct("<Bd")
"""What stands before the records of a frame."""
_REPORT: Final = struct.Struct("<IBBd")
_RECORD: Final = struct.Struct("<II")
END_MARK: Final = _RECORD.size
NO_RECORD: Final = bytes(END_MARK)
"""Stands after the last record in shared memory."""
_FAILURE: Final[Mapping[str, Any]] = {
    "error": str,
    "traceback": str | None,
    "peak_memory": int | None,
    "out_of_memory": bool | None,
}
"""What a report says of a failure; the rest is the parent's to add."""


class Report(NamedTuple):
    """How one attempt ended."""

    sequence: int
    code: int
    """RETURNED or RAISED."""
    flags: int
    seconds: float
    body: str
    """RETURNED: the result as JSON, empty for None. RAISED: see :func:`decode_failure`."""


def encode_report(sequence: int, code: int, flags: int, seconds: float, body: str) -> bytes:
    """A Report as a record of any length."""
    report = _REPORT.pack(sequence, code, flags, seconds) + body.encode()
    return _RECORD.pack(len(report), zlib.crc32(report)) + report


def encode_head(cpu_seconds: float) -> bytes:
    """What stands before the records of a Reports frame.

    :param cpu_seconds: of the worker and its ended children, since its birth.
    """
    return HEAD.pack(REPORTS, cpu_seconds)


def decode_reports(frame: bytes) -> tuple[float, list[Report]]:
    """Read a Reports frame in the parent: CPU seconds, and the reports in the order of their ends.

    :raises ProtocolError: it is none.
    """
    try:
        _, cpu_seconds = HEAD.unpack_from(frame)
    except struct.error as error:
        raise ProtocolError(f"broken reports: {error}") from error
    reports, end = _records(frame)
    if end != len(frame) or not 0 <= cpu_seconds < math.inf:
        raise ProtocolError(f"broken reports: {len(frame) - end} bytes are no record")
    return cpu_seconds, reports


def salvage(memory: bytes) -> tuple[float, list[Report]]:
    """The same from the memory that a worker shares, which it may be writing to: sent ones may be among the whole ones.

    The CPU seconds are those of the last failure, or of what was sent after it; what has returned asks for none.
    """
    _, cpu_seconds = HEAD.unpack_from(memory.ljust(HEAD.size, b"\0"))
    return cpu_seconds if 0 <= cpu_seconds < math.inf else 0.0, _records(memory)[0]


def _records(frame: bytes) -> tuple[list[Report], int]:
    """The records up to the first that is not whole, and where that begins."""
    reports = []
    at = HEAD.size
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
        if code not in (RETURNED, RAISED) or not 0 <= seconds < math.inf:
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
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"broken failure: {error}") from error
    # What is stored and logged later is nobody's to doubt there.
    if not isinstance(content, dict) or not isinstance(content.get("error"), str):
        raise ProtocolError("broken failure: it says no error")
    for name, value in content.items():
        if not isinstance(value, _FAILURE.get(name, ())) or (isinstance(value, int) and not 0 <= value < 2**63):
            raise ProtocolError(f"broken failure: it says {name!r} otherwise than a worker does")
    return Failure(**content)
