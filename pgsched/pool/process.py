"""One worker as the parent holds it: pid, socket, control page, output.

Made before the worker is, because the worker is born with its ends of them; dropped with it, so that nothing which
a dead worker touched is used again. Runs in the parent.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from pgsched.pool import limits, wire
from pgsched.pool.page import ControlPage
from pgsched.pool.stream import Sink, Stream


class Process:
    """Its descriptors and what they lead to.

    :raises OSError: no descriptors or no memory are left.
    """

    def __init__(self, sink: Sink) -> None:
        self.pid: int | None = None
        """None until the forkserver has answered."""
        self.ended = False
        """Whether it was collected: its pid may be somebody else's now."""
        self.parts = wire.Parts()
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.ExitStack() as undo:
            self.sock, self.spare = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self.sock.close)
            undo.callback(self.spare.close)
            self.tickets, self._taken = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self.tickets.close)
            undo.callback(self._taken.close)
            self.page = ControlPage()
            undo.callback(self.page.close)
            reading, self._writing = os.pipe()
            self.stream = Stream(reading, sink)
            undo.pop_all()

    def ends(self) -> list[int]:
        """What the worker is born with: its end of the socket pair, and of its output."""
        return [self.spare.fileno(), self._writing]

    def launched(self) -> None:
        """The worker has its ends, or never will; those of the sockets are kept, to take back what waits there."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1

    def listen(self, on_readable: Callable[[], None], on_output: Callable[[], None]) -> None:
        """Have the running loop call back when the worker has sent frames, or written output."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.sock, on_readable)
        self._loop.add_reader(self.stream.descriptor, on_output)

    def deafen(self) -> None:
        """The output has ended: nobody has the other end any more."""
        if self._loop is not None:
            self._loop.remove_reader(self.stream.descriptor)

    def boot(self, told: dict[str, Any]) -> None:
        """Tell the worker who it is, and give it the page and its end of the tickets."""
        wire.send_message(self.sock, wire.BOOT, told, [self.page.descriptor, self._taken.fileno()])

    def signal(self, number: int) -> None:
        """Send a signal to the worker alone."""
        if self.pid is not None and not self.ended:
            limits.send(self.pid, number)

    def kill(self) -> list[int]:
        """Send SIGKILL to the worker, its process group and its descendants; these are returned."""
        return [] if self.pid is None or self.ended else limits.kill_tree(self.pid)

    def send(self, records: Sequence[bytes], sequences: Sequence[int]) -> int:
        """Send runs and then their tickets; return how many found room for both. Never blocks."""
        try:
            sent = wire.send_runs(self.sock, records)
            if sent:
                sent = self.tickets.send(wire.encode_tickets(sequences[:sent]), socket.MSG_DONTWAIT) // wire.TICKET_SIZE
        except OSError:
            # No room for the tickets: runs without them are nothing. Or no memory for a large payload, or it is dead.
            return 0
        return sent

    def dismiss(self) -> None:
        """Ask the worker to leave when it has done what it has tickets for."""
        self.tickets.send(wire.STOP, socket.MSG_DONTWAIT)

    def take_back(self) -> list[int]:
        """The numbers of the runs whose tickets the worker has not taken; now it cannot any more."""
        numbers: list[int] = []
        while True:
            try:
                tickets = self._taken.recv(wire.LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            numbers += wire.decode_tickets(tickets)
        if numbers:
            self._sweep(numbers[0])
        return numbers

    def _sweep(self, withdrawn: int) -> None:
        """Clear the socket of runs that were taken back: an idle worker does not read, and their room is needed.

        :param withdrawn: the first of them; what was sent before it has its ticket taken, and the worker may be about
            to read it. That goes back.
        """
        kept: list[tuple[bytes, list[int]]] = []
        while True:
            try:
                frame, descriptors = wire.receive(self.spare, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if wire.first_sequence(frame) < withdrawn:
                kept.append((frame, descriptors))
            else:
                wire.close_all(descriptors)
        for frame, descriptors in kept:
            wire.send_back(self.sock, frame, descriptors)

    def close(self) -> None:
        """Give everything back. What the worker has left running keeps its own ends."""
        self.launched()
        self.deafen()
        if self._loop is not None:
            self._loop.remove_reader(self.sock)
        self.stream.close()
        self.page.close()
        self.sock.close()
        self.tickets.close()
        self._taken.close()
        self.spare.close()
