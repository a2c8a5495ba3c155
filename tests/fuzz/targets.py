"""What must hold of any bytes: one function for each reader of what others have written.

Called with what Hypothesis makes up in the normal floors, and with what atheris finds (``python -m tests.fuzz``). Each
raises what breaks its promise. Nothing is connected or started.
"""

import asyncio
import json
import math
import random
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from pgsched.errors import UsageError
from pgsched.ops import http
from pgsched.pool import records, wire
from pgsched.quantities import check_name, parse_address, parse_bytes, parse_number, parse_seconds
from pgsched.rules.payload import check_payload, to_json
from pgsched.signature import Signature
from pgsched.store.connection import _parameters

Value = TypeVar("Value")
Reader = Callable[[bytes], object]

LONGEST = 1000
"""Characters of a message for a person."""
_ANY = Signature("any", lambda **arguments: arguments)


def frames(data: bytes) -> None:
    """Whatever a worker sends is a frame or a ProtocolError."""
    readers: list[Reader] = [_whole(wire.Parts()), wire.decode_message, records.decode_reports, _runs, _failure]
    for datagram in (data, data[: len(data) // 2], data[len(data) // 2 :]):
        for read in readers:
            try:
                read(datagram)
            except wire.ProtocolError:
                continue
        records.salvage(datagram)
        wire.decode_tickets(datagram)


def report(data: bytes) -> None:
    """Records whose check is right are whole reports with sensible numbers, or a ProtocolError."""
    dice = random.Random(data)
    code, flags = dice.choice([0, 1, 2, 255]), dice.choice([0, 1, 255])
    seconds = dice.choice([0.0, 1.5, -1.0, math.nan, math.inf, 1e300])
    body = data.decode(errors="replace")
    record = records.encode_report(dice.choice([0, 1, 2**32 - 1]), code, flags, seconds, body)
    try:
        cpu_seconds, [found] = records.decode_reports(records.encode_head(dice.choice([0.0, 2.5, math.nan])) + record)
    except wire.ProtocolError:
        return
    assert 0 <= found.seconds < math.inf
    assert 0 <= cpu_seconds < math.inf
    assert found.code in (records.RETURNED, records.RAISED)
    assert found.body == body


def payload(data: bytes) -> None:
    """What a worker reads of a payload is what ``json.loads`` reads, if that is an object."""
    text = _text(data)
    try:
        expected = json.loads(text)
    except (ValueError, RecursionError):
        expected = None
    try:
        found = _ANY.read(text)
    except UsageError as error:
        _one_line(error)
        assert not isinstance(expected, dict)
    else:
        # NaN is not equal to itself.
        assert repr(found) == repr(expected)
    _stored(check_payload, expected)
    _stored(lambda value: to_json(value, 1 << 20), expected)


def quantities(data: bytes) -> None:
    """A quantity is in its range, or refused in one line."""
    text = _text(data)
    for value in (text, [text], len(data) * 10 ** (len(data) % 5000), *_number(text)):
        _quantity(value)


def _quantity(value: object) -> None:
    seconds = _refused_or(lambda: parse_seconds(value, "--option", 0.5, 100.0))
    assert seconds is None or 0.5 <= seconds <= 100
    size = _refused_or(lambda: parse_bytes(value, "--option", 10, 1 << 40))
    assert size is None or 10 <= size <= 1 << 40
    number = _refused_or(lambda: parse_number(value, "--option", -5, 1000))
    assert number is None or -5 <= number <= 1000
    name = _refused_or(lambda: check_name("--option", value))
    assert name is None or (name.isprintable() and name.encode() and 1 <= len(name) <= 64)
    address = _refused_or(lambda: parse_address(value, "--option"))
    assert address is None or parse_address(str(address)) == address


def dsn(data: bytes) -> None:
    """A connection string is understood, or refused in one line that does not quote it."""
    text = _text(data)
    refused = None
    try:
        found = _parameters(text, 1.0, "fuzz")
    except UsageError as error:
        _one_line(error)
        refused = str(error)
    if refused is None:
        assert found["client_encoding"] == "utf8"
        assert "\0" not in text
    else:
        assert re.fullmatch(r"malformed DSN \([^\"]*\): must be postgresql://\.\.\. or key=value pairs", refused)


def request(data: bytes) -> None:
    """A request is understood, or refused with a status."""

    async def read() -> http._Request | None:
        reader = asyncio.StreamReader(limit=http.HEADER_LIMIT)
        reader.feed_data(data)
        reader.feed_eof()
        try:
            return await http._read_request(reader)
        except http._Refused as refused:
            status = refused.status
        except ConnectionResetError:
            status = HTTPStatus.NO_CONTENT
        assert 400 <= status < 500 or not data
        return None

    found = asyncio.run(read())
    if found is not None:
        assert re.fullmatch(r"[A-Z]+", found.method)
        assert re.fullmatch(r"/[\x21-\x3e\x40-\x7e]*", found.path)
        assert not set(found.accept) & set("\r\n\0")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (frames, report, payload, quantities, dsn, request)
}


def _whole(parts: wire.Parts) -> Reader:
    def read(datagram: bytes) -> None:
        frame = parts.whole(datagram)
        assert frame is None or frame

    return read


def _runs(datagram: bytes) -> object:
    return wire.decode_runs(datagram, [])


def _failure(datagram: bytes) -> None:
    failure = records.decode_failure(datagram.decode(errors="replace"))
    assert isinstance(failure.error, str)
    assert failure.peak_memory is None or 0 <= failure.peak_memory < 2**63


def _stored(store: Callable[[object], str], value: object) -> None:
    try:
        text = store(value)
    except UsageError as error:
        _one_line(error)
    else:
        assert json.loads(text) == value
        assert "\0" not in text
        assert text.encode()


def _refused_or(read: Callable[[], Value]) -> Value | None:
    try:
        return read()
    except UsageError as error:
        _one_line(error)
        return None


def _number(text: str) -> list[float]:
    try:
        return [float(text)]
    except ValueError:
        return []


def _one_line(error: UsageError) -> None:
    assert len(str(error).splitlines()) == 1, str(error)
    assert len(str(error)) <= LONGEST


def _text(data: bytes) -> str:
    """Any text that an argument, a variable or a row may bring: also bytes that are no UTF-8, as Python keeps them."""
    return data.decode(errors="surrogateescape")
