"""Reports that gather: how many, for how long, what the parent finds in the memory, and what does not fit there."""

import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from pgsched.model import OutcomeKind
from pgsched.pool import records, wire
from pgsched.pool.outbox import HOLD, MOST, Outbox
from pgsched.pool.page import SIZE, ControlPage, PageView


class Bench(NamedTuple):
    """A worker's outbox, and the parent's end."""

    outbox: Outbox
    memory: bytearray
    parent: socket.socket

    def arrived(self) -> list[list[int]]:
        """The numbers of the reports that were sent, datagram by datagram."""
        parts = wire.Parts()
        frames: list[list[int]] = []
        while True:
            try:
                datagram = self.parent.recv(wire.LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            if frame := parts.whole(datagram):
                frames.append([report.sequence for report in records.decode_reports(frame)[1]])

    def waiting(self) -> list[int]:
        """The numbers of those that the parent finds in the memory."""
        return [report.sequence for report in records.salvage(bytes(self.memory))[1]]


@pytest.fixture
def bench() -> Iterator[Bench]:
    parent, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = bytearray(b"\xff" * 1000)
    with parent, worker:
        yield Bench(Outbox(worker, memoryview(memory), lambda: None, lambda: 0.5), memory, parent)


def report(number: int, size: int = 0) -> bytes:
    return records.encode_report(number, records.RETURNED, 0, 0.1, "x" * size)


def test_reports_wait_for_others_but_not_for_long(bench: Bench) -> None:
    bench.outbox.put(report(1), 10.0)
    bench.outbox.put(report(2), 10.0 + HOLD / 2)
    assert bench.arrived() == []
    assert bench.waiting() == [1, 2]
    bench.outbox.put(report(3), 10.0 + 2 * HOLD)
    assert bench.arrived() == [[1, 2, 3]]
    assert bench.outbox.count == 0


def test_what_a_failure_has_cost_is_found_with_it(bench: Bench) -> None:
    bench.outbox.put(records.encode_report(1, records.RAISED, 0, 0.1, ""), 10.0, failed=True)
    assert records.salvage(bytes(bench.memory))[0] == 0.5


def test_not_too_many_travel_together(bench: Bench) -> None:
    for number in range(MOST):
        assert bench.arrived() == []
        bench.outbox.put(report(number), 10.0)
    assert bench.arrived() == [list(range(MOST))]


def test_what_has_been_sent_is_not_found_in_the_memory(bench: Bench) -> None:
    bench.outbox.put(report(1), 10.0)
    bench.outbox.put(report(2), 10.0)
    bench.outbox.flush()
    assert bench.waiting() == []
    bench.outbox.put(report(3), 11.0)
    # The second one of before lies behind it still.
    assert bench.waiting() == [3]


def test_one_for_which_there_is_no_room_behind_the_others_comes_after_them(bench: Bench) -> None:
    bench.outbox.put(report(1, 500), 10.0)
    bench.outbox.put(report(2, 500), 10.0)
    assert bench.arrived() == [[1]]
    assert bench.waiting() == [2]


@pytest.mark.parametrize("size", [1000, 200_000])
def test_one_for_which_there_is_no_room_at_all_comes_at_once_and_after_the_others(bench: Bench, size: int) -> None:
    bench.parent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    bench.outbox._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    bench.outbox.put(report(1), 10.0)
    bench.outbox.put(report(2, size), 10.0)
    assert bench.arrived() == [[1], [2]]
    assert bench.outbox.count == 0


def test_a_reason_of_any_length_leaves_the_reports_alone() -> None:
    page = ControlPage()
    view = PageView(page.descriptor)
    view.outbox[:4] = b"kept"
    page.ask(7, OutcomeKind.CANCELLED, "x" * 2 * SIZE)
    assert page.outbox()[:4] == b"kept"
    stop = view.asked(7)
    assert stop is not None
    assert set(stop.reason) == {"x"}
    assert view.asked(6) is None
    view.outbox.release()
    view._map.close()
    page.close()
