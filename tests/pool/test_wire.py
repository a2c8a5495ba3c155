"""Frames go through a socket pair whole, or not at all; what is no frame is refused."""

import math
import os
import random
import socket
from collections.abc import Iterator

import pytest

from pgsched.model import Claim, Failure
from pgsched.pool import wire

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def claim(payload: str) -> Claim:
    return Claim(2**62, 3, "größe", "päckchen", 5, payload, 2, 7, None, 0.5, "2026-01-01")


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 65_537, 3_000_000])
def test_a_run_arrives_as_it_was(pair: Pair, size: int) -> None:
    ours, theirs = pair
    payload = '{"ü": 1}' + "x" * size
    frame = wire.encode_run(4_000_000_000, claim(payload), 12.5, 99.25, brief=True)
    assert wire.send_run(ours, frame, claim(payload))
    received, descriptors = wire.receive(theirs)
    assert len(received) <= wire.LIMIT
    assert len(descriptors) == (len(frame) > wire.LIMIT)
    assert wire.sequence_of(received) == 4_000_000_000
    run = wire.decode_run(received, descriptors)
    assert run == wire.Run(4_000_000_000, True, 2**62, "größe", "päckchen", 3, 7, 12.5, 99.25, payload)


def test_no_limit_is_infinite(pair: Pair) -> None:
    assert wire.decode_run(wire.encode_run(1, claim("{}"), math.inf, 0.0, brief=False), []).timeout == math.inf


@pytest.mark.parametrize("payload", ["x" * 60_000, "x" * 70_000])
def test_a_full_socket_refuses_whole_frames_and_leaks_nothing(pair: Pair, payload: str) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    frame = wire.encode_run(1, claim(payload), math.inf, 0.0, brief=False)
    sent = 0
    while sent < 2000 and wire.send_run(ours, frame, claim(payload)):
        sent += 1
    assert 0 < sent < 2000
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(sent):
        assert wire.decode_run(*wire.receive(theirs)).payload == payload
    assert wire.send_run(ours, frame, claim(payload))


@pytest.mark.parametrize("size", [0, 65_513, 65_514, 65_515, 65_536, 131_050, 1_000_000])
def test_a_report_of_any_size_is_put_together(pair: Pair, size: int) -> None:
    ours, theirs = pair
    # Begins with what could be taken for the mark of a part.
    body = "\x07\x08" + "x" * size
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
    first = wire.encode_report(7, wire.RETURNED, wire.WORN, 1.5, body)
    second = wire.encode_report(8, wire.RAISED, 0, 0.0, "")
    wire.send_long(theirs, wire.encode_head(2.5) + first + second)
    wire.send_long(theirs, wire.encode_head(3.5) + second)
    parts = wire.Parts()
    found: list[tuple[float, list[wire.Report]]] = []
    while len(found) < 2:
        frame = parts.whole(ours.recv(wire.LIMIT))
        if frame is not None:
            found.append(wire.decode_reports(frame))
    raised = wire.Report(8, wire.RAISED, 0, 0.0, "")
    assert found == [(2.5, [wire.Report(7, wire.RETURNED, wire.WORN, 1.5, body), raised]), (3.5, [raised])]


def test_what_is_salvaged_ends_before_the_first_record_that_is_not_whole() -> None:
    records = [wire.encode_report(number, wire.RETURNED, 0, 0.5, "é" * number) for number in range(3)]
    memory = wire.encode_head(0.0) + b"".join(records)
    assert [report.sequence for report in wire.salvage(memory + wire.NO_RECORD + b"rest")] == [0, 1, 2]
    begin = len(memory) - len(records[2])
    for at in range(begin, len(memory)):
        torn = memory[:at] + bytes((memory[at] ^ 1,)) + memory[at + 1 :]
        assert [report.sequence for report in wire.salvage(torn)] == [0, 1]
        assert [report.sequence for report in wire.salvage(memory[:at])] == [0, 1]


def test_a_failure_goes_there_and_back() -> None:
    failure = Failure(error="é", traceback="a\nb", peak_memory=5, out_of_memory=True)
    assert wire.decode_failure(wire.encode_failure(failure)) == failure


def test_messages_carry_descriptors(pair: Pair) -> None:
    ours, theirs = pair
    reading, writing = os.pipe()
    wire.send_message(ours, wire.BOOT, {"a": [1, None]}, [reading, writing])
    frame, descriptors = wire.receive(theirs)
    assert frame[0] == wire.BOOT
    assert wire.decode_message(frame) == {"a": [1, None]}
    assert [os.fstat(each).st_ino for each in descriptors] == [os.fstat(reading).st_ino] * 2
    assert not any(map(os.get_inheritable, descriptors))
    for descriptor in [reading, writing, *descriptors]:
        os.close(descriptor)


def test_rubbish_is_refused(dice: random.Random) -> None:
    for _ in range(2000):
        rubbish = dice.randbytes(dice.randrange(1, 80))
        for decode in (wire.decode_reports, wire.decode_message, lambda frame: wire.decode_run(frame, [])):
            try:
                decode(rubbish)
            except wire.ProtocolError:
                continue
    for body in ("", "3", "{}", '{"error": "x", "other": 1}'):
        with pytest.raises(wire.ProtocolError):
            wire.decode_failure(body)


def test_parts_that_never_end_are_refused() -> None:
    parts = wire.Parts()
    for _ in range(1025):
        assert parts.whole(bytes((wire.PART,))) is None
    with pytest.raises(wire.ProtocolError, match="endless"):
        parts.whole(bytes((wire.PART,)))


def test_the_end_of_file_is_an_empty_frame(pair: Pair) -> None:
    ours, theirs = pair
    ours.close()
    assert wire.receive(theirs) == (b"", [])
