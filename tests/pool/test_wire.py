"""Frames go through a socket pair whole, or not at all; what is no frame is refused."""

import math
import os
import random
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.model import Claim, Failure
from pgsched.pool import records, wire
from pgsched.pool.process import Process
from pgsched.pool.stream import Sink

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def claim(payload: str) -> Claim:
    return Claim(2**62, 2**61, "größe", "päckchen", 5, payload, 2, 7, None, 0.5, "2026-01-01")


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 65_537, 3_000_000])
def test_runs_arrive_as_they_were(pair: Pair, size: int) -> None:
    ours, theirs = pair
    payload = '{"ü": 1}' + "x" * size
    long = wire.encode_run(4_000_000_000, claim(payload), 12.5, 99.25, brief=True)
    short = wire.encode_run(4_000_000_001, claim("{}"), math.inf, 0.0, brief=False)
    assert wire.send_runs(ours, [long, short]) == 2
    runs: list[wire.Run] = []
    while len(runs) < 2:
        received, descriptors = wire.receive(theirs)
        assert len(received) <= wire.LIMIT
        assert len(descriptors) == (not runs and len(long) >= wire.LIMIT)
        assert wire.first_sequence(received) == 4_000_000_000 + len(runs)
        runs += wire.decode_runs(received, descriptors)
    assert runs[0] == wire.Run(4_000_000_000, True, 2**62, "größe", "päckchen", 3, 2**61, 7, 12.5, 99.25, payload)
    assert (runs[1].timeout, runs[1].brief, runs[1].payload) == (math.inf, False, "{}")


def test_short_runs_share_a_frame(pair: Pair) -> None:
    ours, theirs = pair
    runs = [wire.encode_run(number, claim("x" * 30_000), 1.0, 0.0, brief=True) for number in range(1, 6)]
    assert wire.send_runs(ours, runs) == 5
    frames = [wire.decode_runs(*wire.receive(theirs)) for _ in range(3)]
    assert [[run.sequence for run in frame] for frame in frames] == [[1, 2], [3, 4], [5]]


def test_a_frame_that_was_taken_from_the_socket_can_be_sent_back(pair: Pair) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    assert wire.send_runs(ours, [wire.encode_run(1, claim("x" * 70_000), 1.0, 0.0, brief=True)]) == 1
    wire.send_back(ours, *wire.receive(theirs))
    [run] = wire.decode_runs(*wire.receive(theirs))
    assert run.payload == "x" * 70_000
    assert len(os.listdir("/proc/self/fd")) == before


@given(st.lists(st.integers(1, 2**32 - 1)), st.integers(0, 3))
def test_tickets_bear_numbers(numbers: list[int], torn: int) -> None:
    assert wire.decode_tickets(wire.encode_tickets(numbers) + b"x" * torn) == numbers


@pytest.mark.parametrize("payload", ["x" * 60_000, "x" * 70_000])
def test_a_full_socket_refuses_whole_frames_and_leaks_nothing(pair: Pair, payload: str) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    run = wire.encode_run(1, claim(payload), math.inf, 0.0, brief=False)
    sent = 0
    while sent < 2000 and wire.send_runs(ours, [run]):
        sent += 1
    assert 0 < sent < 2000
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(sent):
        assert wire.decode_runs(*wire.receive(theirs))[0].payload == payload
    assert 0 < wire.send_runs(ours, [run] * 2000) < 2000


@pytest.mark.parametrize("size", [0, 65_513, 65_514, 65_515, 65_536, 131_050, 1_000_000])
def test_a_report_of_any_size_is_put_together(pair: Pair, size: int) -> None:
    ours, theirs = pair
    # Begins with what could be taken for the mark of a part.
    body = "\x07\x08" + "x" * size
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
    first = records.encode_report(7, records.RETURNED, records.WORN, 1.5, body)
    second = records.encode_report(8, records.RAISED, 0, 0.0, "")
    wire.send_long(theirs, records.encode_head(2.5) + first + second)
    wire.send_long(theirs, records.encode_head(3.5) + second)
    parts = wire.Parts()
    found: list[tuple[float, list[records.Report]]] = []
    while len(found) < 2:
        frame = parts.whole(ours.recv(wire.LIMIT))
        if frame is not None:
            found.append(records.decode_reports(frame))
    raised = records.Report(8, records.RAISED, 0, 0.0, "")
    assert found == [(2.5, [records.Report(7, records.RETURNED, records.WORN, 1.5, body), raised]), (3.5, [raised])]


def test_what_is_salvaged_ends_before_the_first_record_that_is_not_whole() -> None:
    whole = [records.encode_report(number, records.RETURNED, 0, 0.5, "é" * number) for number in range(3)]
    memory = records.encode_head(0.0) + b"".join(whole)
    assert [report.sequence for report in records.salvage(memory + records.NO_RECORD + b"rest")[1]] == [0, 1, 2]
    begin = len(memory) - len(whole[2])
    for at in range(begin, len(memory)):
        torn = memory[:at] + bytes((memory[at] ^ 1,)) + memory[at + 1 :]
        assert [report.sequence for report in records.salvage(torn)[1]] == [0, 1]
        assert [report.sequence for report in records.salvage(memory[:at])[1]] == [0, 1]


def test_a_failure_goes_there_and_back() -> None:
    failure = Failure(error="é", traceback="a\nb", peak_memory=5, out_of_memory=True)
    assert records.decode_failure(records.encode_failure(failure)) == failure


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
        for decode in (records.decode_reports, wire.decode_message, lambda frame: wire.decode_runs(frame, [])):
            try:
                decode(rubbish)
            except wire.ProtocolError:
                continue
    for body in ("", "3", "{}", '{"error": "x", "other": 1}'):
        with pytest.raises(wire.ProtocolError):
            records.decode_failure(body)


def test_parts_that_never_end_are_refused() -> None:
    parts = wire.Parts()
    for _ in range(1025):
        assert parts.whole(bytes((wire.PART,))) is None
    with pytest.raises(wire.ProtocolError, match="endless"):
        parts.whole(bytes((wire.PART,)))


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(wire.ProtocolError, match="empty"):
        wire.Parts().whole(b"")


def test_bytes_behind_the_last_report_are_refused() -> None:
    frame = records.encode_head(0.5) + records.encode_report(1, records.RETURNED, 0, 0.5, "1")
    assert len(records.decode_reports(frame)[1]) == 1
    with pytest.raises(wire.ProtocolError, match="1 bytes are no record"):
        records.decode_reports(frame + b"x")


def test_a_long_frame_does_not_begin_with_the_one_before(pair: Pair) -> None:
    ours, theirs = pair
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * 1024 * 1024)
    parts = wire.Parts()
    for letter in (b"a", b"b"):
        wire.send_long(theirs, letter * 100_000)
        frames = [parts.whole(ours.recv(wire.LIMIT)) for _ in range(2)]
        assert frames == [None, letter * 100_000]


def test_the_end_of_file_is_an_empty_frame(pair: Pair) -> None:
    ours, theirs = pair
    ours.close()
    assert wire.receive(theirs) == (b"", [])


def test_a_run_whose_ticket_is_taken_stays_in_the_socket_when_the_others_are_taken_back() -> None:
    """The worker may be between its ticket and its frame."""
    before = len(os.listdir("/proc/self/fd"))
    process = Process(Sink())
    for number in (3, 4, 5, 6):
        run = wire.encode_run(number, claim("x" * (10 if number % 2 else 70_000)), 1.0, 0.0, brief=True)
        assert process.send([run], [number]) == 1
    taken = [wire.decode_tickets(process._taken.recv(wire.TICKET_SIZE)) for _ in range(2)]
    assert taken == [[3], [4]]
    assert process.take_back() == [5, 6]
    left = [run.sequence for _ in range(2) for run in wire.decode_runs(*wire.receive(process.spare))]
    assert left == [3, 4]
    with pytest.raises(BlockingIOError):
        process.spare.recv(1, socket.MSG_DONTWAIT)
    process.close()
    assert len(os.listdir("/proc/self/fd")) == before
