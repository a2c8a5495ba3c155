"""The forces: do the harm of a plan, end it when its time is over, and note what was done.

Runs in the storm's process, in its one thread but for the relays'.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import psycopg

from tests.chaos.fleet import Seat
from tests.chaos.ledger import Done
from tests.chaos.place import Place
from tests.chaos.plan import NO_SEAT, Fault, Harm

STEPS = (3600, -7200, 86400, -30, 0, 90 * 86400)
"""Seconds by which a wall clock is wrong after a step."""
WORK = "pgsched work"
"""The connection over which claims and settles are committed."""
VICTIMS = """
    SELECT pid FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name LIKE 'pgsched%' ORDER BY pid
"""
DISKS = {Harm.FILL_TABLES: "tables", Harm.FILL_LOG: "log"}


class _Lasting(NamedTuple):
    until: float
    end: Callable[[], None]


class Forces:
    """Does the faults of a plan."""

    def __init__(self, place: Place, seats: list[Seat], *, clocks: bool) -> None:
        self._place = place
        self._seats = seats
        self._clocks = clocks
        self._lasting: list[_Lasting] = []
        self.done: list[Done] = []
        self.missed: Counter[Harm] = Counter()
        """Faults that found nobody to hit, or cannot be done here."""

    @property
    def filled(self) -> bool:
        """Whether a disk of the server is full just now."""
        return any(done.harm in DISKS and done.until > time.monotonic() for done in self.done)

    def do(self, fault: Fault) -> None:
        """Begin one fault."""
        if fault.seat == NO_SEAT:
            self._to_server(fault)
        elif fault.harm in _SIGNALS:
            self._to_process(fault, self._seats[fault.seat])
        else:
            self._to_line(fault, self._seats[fault.seat])

    def end(self, *, everything: bool = False) -> None:
        """End the faults whose time is over."""
        for lasting in list(self._lasting):
            if everything or lasting.until <= time.monotonic():
                self._lasting.remove(lasting)
                lasting.end()

    def _note(self, fault: Fault, pid: int | None = None, end: Callable[[], None] | None = None) -> None:
        at = time.monotonic()
        self.done.append(Done(at, at + fault.seconds, fault.harm, fault.seat, pid))
        if end is not None:
            self._lasting.append(_Lasting(at + fault.seconds, end))

    def _to_process(self, fault: Fault, seat: Seat) -> None:
        number = _SIGNALS[fault.harm]
        pids = [found.pid for found in _BELOW[fault.harm](seat)] if fault.harm in _BELOW else [seat.pid or 0]
        pid = pids[int(fault.choice * len(pids))] if pids else 0
        if not pid or not _signal(pid, number):
            self.missed[fault.harm] += 1
        elif number == signal.SIGSTOP:
            self._note(fault, pid, lambda: _resume(pid))
        else:
            self._note(fault, pid)

    def _to_line(self, fault: Fault, seat: Seat) -> None:
        proxy = seat.proxy
        match fault.harm:
            case Harm.STEP_CLOCK:
                if not self._clocks:
                    self.missed[fault.harm] += 1
                    return
                seat.step_clock(STEPS[int(fault.choice * len(STEPS))])
                self._note(fault)
                return
            case Harm.REFUSE:
                proxy.refuse()
            case Harm.REJECT:
                starting = ("57P03", "the database system is starting up")
                proxy.reject(*(starting if fault.choice < 0.5 else ("53300", "sorry, too many clients already")))
                proxy.cut()
            case Harm.SILENCE:
                proxy.silence()
            case Harm.CUT:
                proxy.swallow(under_way=fault.choice < 0.5)
            case Harm.SWALLOW:
                proxy.swallow(only=WORK)
            case Harm.DELAY:
                proxy.hold(WORK)
            case Harm.TERMINATE_BACKENDS:
                self._terminate(fault)
                return
        self._note(fault, None, proxy.pass_on)

    def _to_server(self, fault: Fault) -> None:
        if fault.harm in DISKS:
            disk = DISKS[fault.harm]
            if not self._place.small:
                self.missed[fault.harm] += 1
                return
            self._note(fault, None, lambda: self._place.empty(disk))
            self._place.fill(disk)
        elif fault.harm is Harm.TERMINATE_BACKENDS:
            self._terminate(fault)
        else:
            self._crash(fault)

    def _crash(self, fault: Fault) -> None:
        """Kill one server process: PostgreSQL then ends all others, and recovers from its log."""
        try:
            with self._place.connect() as connection:
                pids = [int(pid) for (pid,) in connection.execute(VICTIMS).fetchall()]
        except psycopg.Error:
            pids = []
        if not pids or not _signal(pids[int(fault.choice * len(pids))], signal.SIGKILL):
            self.missed[fault.harm] += 1
        else:
            self._note(fault)

    def _terminate(self, fault: Fault) -> None:
        try:
            with self._place.connect() as connection:
                pids = [int(pid) for (pid,) in connection.execute(VICTIMS).fetchall()]
                chosen = pids if fault.seat == NO_SEAT else pids[int(fault.choice * len(pids)) :][:1]
                for pid in chosen:
                    connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        except psycopg.Error:
            chosen = []
        if not chosen:
            self.missed[fault.harm] += 1
            return
        # Which seat a session belongs to is not known here, so it may have been any.
        self._note(fault._replace(seat=NO_SEAT))


_SIGNALS = {
    Harm.KILL_WORKER: signal.SIGKILL,
    Harm.STOP_WORKER: signal.SIGSTOP,
    Harm.KILL_FORKSERVER: signal.SIGKILL,
    Harm.STOP_FORKSERVER: signal.SIGSTOP,
    Harm.KILL_SUPERVISOR: signal.SIGKILL,
    Harm.STOP_SUPERVISOR: signal.SIGSTOP,
    Harm.TERMINATE_SUPERVISOR: signal.SIGTERM,
}
_BELOW = {
    Harm.KILL_WORKER: Seat.workers,
    Harm.STOP_WORKER: Seat.workers,
    Harm.KILL_FORKSERVER: Seat.forkservers,
    Harm.STOP_FORKSERVER: Seat.forkservers,
}


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _resume(pid: int) -> None:
    _signal(pid, signal.SIGCONT)
