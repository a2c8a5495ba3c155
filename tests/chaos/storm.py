"""Runs a storm: queue, harm, restart; then calm, drain, probe, stop, and the judgement.

One thread that turns every few milliseconds; the relays have theirs.
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from pgsched.errors import PgschedError
from pgsched.model import NewTask
from pgsched.store.admin import Filter, cancel
from pgsched.store.enqueue import insert
from tests import bouncer, faketime
from tests.chaos.fleet import RUNTIME, Seat
from tests.chaos.forces import Forces
from tests.chaos.keeping import OLD_RANGES, add_old_range, check_terms
from tests.chaos.ledger import Book, Violation, check_tasks, ways
from tests.chaos.leftovers import check_host, check_running, check_sessions
from tests.chaos.place import Place
from tests.chaos.plan import SEATS, Fault, Order, Plan
from tests.chaos.record import Record, executions
from tests.chaos.repeats import check_executions, check_keys, check_leases

TURN = 0.02
DRAIN = 120.0
"""Seconds in which everything that is due has to end once the faults are over."""
CALM = 20.0
"""Seconds for each of the steps after that."""
AGEING = 6.0
"""Seconds between two ranges of tasks that ended long ago."""
DUE = """
    SELECT count(*) FROM scheduled_tasks_live
    WHERE status = 'processing' OR run_at < clock_timestamp() + interval '1 hour'
"""
KEYS = """
    SELECT key FROM (SELECT format('%%s %%s', %s::text, number) AS key FROM generate_series(1, 1000) AS number) AS keys
    WHERE pgsched_partition(0, key) = ANY (%s) LIMIT 5
"""
"""Such as lead into some of the partitions."""


class Report(NamedTuple):
    """What a storm came to."""

    plan: Plan
    book: Book
    violations: list[Violation]
    figures: Mapping[str, Any]
    remarks: list[str]
    """What could not be done here."""


class Storm:
    """One storm; :meth:`run` once."""

    def __init__(
        self, plan: Plan, place: Place, seats: list[Seat], forces: Forces, record: Record, journal: Path
    ) -> None:
        self._plan = plan
        self._place = place
        self._seats = seats
        self._forces = forces
        self._record = record
        self._journal = journal
        self._connection: psycopg.Connection[Any] | None = None
        self._cancels: list[tuple[float, list[int]]] = []
        self._unqueued = 0
        self._violations: list[Violation] = []
        self._usual: dict[int, Counter[str]] = {}
        self._age_at, self._aged = 0.0, 0

    def run(self) -> tuple[Book, list[Violation], Mapping[str, Any]]:
        """Everything from the first task to the judgement."""
        self._wait(self._ready, CALM, "supervisors are registered")
        self._settle_down()
        self._wait(self._connected, CALM, "every supervisor has all its connections")
        self._usual = {seat.number: Counter(seat.descriptors()) for seat in self._seats}
        self._blow()
        began = time.monotonic()
        self._drain()
        drained = time.monotonic() - began
        self._probe()
        self._settle_down()
        self._violations += self._left_running()
        with self._place.connect() as connection:
            self._violations += check_sessions(connection, running=True)
        self._stop()
        book = self._read()
        found = ways(book.entries)
        self._violations += [*check_tasks(book, found), *check_executions(book, found)]
        self._violations += [*check_keys(book, found), *check_leases(book), *check_terms(book, found)]
        return book, self._violations, self._figures(book, drained)

    def _ready(self) -> bool:
        # Tenures that are alive, not rows: the dead leave theirs until they are reaped.
        alive = "SELECT count(*) FROM pgsched_supervisors WHERE lease_until > clock_timestamp()"
        workers = all(len(seat.workers()) >= 2 for seat in self._seats)
        return workers and self._ask(alive) == SEATS

    def _connected(self) -> bool:
        return all(seat.connected for seat in self._seats)

    def _left_running(self) -> list[Violation]:
        """What idle supervisors still have too much of when there was time enough to give it back."""

        def found() -> list[Violation]:
            self._turn()
            return list(check_running(self._seats, self._usual))

        return self._in_time(found)

    def _in_time(self, check: Callable[[], list[Violation]]) -> list[Violation]:
        """What a check still finds when there was time enough for it to pass."""
        deadline = time.monotonic() + CALM
        while (found := check()) and time.monotonic() < deadline:
            time.sleep(TURN)
        return found

    def _blow(self) -> None:
        begin = time.monotonic()
        faults, orders = list(self._plan.faults), list(self._plan.orders)
        while (at := time.monotonic() - begin) < self._plan.seconds:
            self._turn()
            while faults and faults[0].at <= at:
                self._harm(faults.pop(0))
            while orders and orders[0].at <= at:
                self._queue(orders.pop(0))
            self._age()
            for due, ids in [each for each in self._cancels if each[0] <= time.monotonic()]:
                self._cancels.remove((due, ids))
                self._do(lambda connection, ids=ids: cancel(connection, Filter(ids=ids)))  # type: ignore[misc]
            time.sleep(TURN)
        self._forces.end(everything=True)

    def _harm(self, fault: Fault) -> None:
        if not (fault.harm.startswith("fill") and self._forces.filled):
            self._forces.do(fault)

    def _age(self) -> None:
        """Give those who prune a range to drop."""
        if self._plan.terms.kept is not None and time.monotonic() >= self._age_at:
            self._age_at = time.monotonic() + AGEING
            number = self._aged + 1
            self._do(lambda connection: add_old_range(connection, number))
            # If the answer was lost, it may be there.
            self._aged = number

    def _turn(self) -> None:
        self._forces.end()
        for seat in self._seats:
            seat.tend(time.monotonic())
        if not self._forces.filled:
            self._place.tend()

    def _queue(self, order: Order) -> None:
        task = NewTask(
            order.kind,
            f'{{"amount": {order.amount}}}',
            queue=order.queue,
            priority=order.priority,
            max_retries=order.max_retries,
            delay=order.delay,
            unique_key=order.key,
        )
        tasks = [task] if order.key is not None else [task] * order.tasks
        ids = self._do(lambda connection: insert(connection, tasks))
        if ids is None:
            self._unqueued += 1
        elif order.cancel_after is not None:
            self._cancels.append((time.monotonic() + order.cancel_after, ids))

    def _do(self, work: Callable[[psycopg.Connection[Any]], Any]) -> Any:
        """Do something over the storm's own connection; None while the server is away."""
        try:
            if self._connection is None:
                self._connection = self._place.connect()
                self._connection.execute("SET statement_timeout = '1s'")
            return work(self._connection)
        except (psycopg.Error, PgschedError):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None

    def _ask(self, query: str) -> int | None:
        answer = self._do(lambda connection: connection.execute(query.encode()).fetchone())
        return None if answer is None else int(answer[0])

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self._violations.append(Violation("not in time", None, f"not within {seconds:g} s: {what}"))
                return False
            self._turn()
            time.sleep(TURN)
        return True

    def _drain(self) -> None:
        self._place.wait(CALM)
        self._wait(lambda: self._ask(DUE) == 0, DRAIN, "everything that is due has ended")

    def _probe(self) -> None:
        """Without a restart of anything: each supervisor takes tasks of a queue that no other serves."""
        self._wait(self._ready, CALM, "every seat has a supervisor with its workers")
        before = [list(seat.started) for seat in self._seats]
        probes = [probe for seat in self._seats for probe in self._probes(seat)]
        self._do(lambda connection: insert(connection, probes))
        for seat in self._seats:
            left = f"SELECT count(*) FROM scheduled_tasks_live WHERE queue = '{seat.queue}'"
            self._wait(lambda left=left: self._ask(left) == 0, CALM, f"seat {seat.number} works on")  # type: ignore[misc]
        if before != [list(seat.started) for seat in self._seats]:
            self._violations.append(Violation("restart", None, "a supervisor ended after the storm was over"))

    def _probes(self, seat: Seat) -> list[NewTask]:
        """Tasks that only the supervisor of this seat may claim."""
        partitions = list(seat.terms.partitions or range(self._plan.terms.partitions))
        found = self._do(
            lambda connection: connection.execute(KEYS, [f"probe of {seat.number}", partitions]).fetchall()
        )
        keys = [str(key) for (key,) in found or []]
        return [NewTask("noop", '{"amount": 0}', queue=seat.queue, unique_key=key) for key in keys]

    def _settle_down(self) -> None:
        """Wait for what goes on beside tasks: workers that boot, forkservers that come back."""
        self._wait(
            lambda: all(len(seat.workers()) == 2 and len(seat.forkservers()) == 1 for seat in self._seats),
            CALM,
            "every supervisor has its workers and its forkserver",
        )

    def _stop(self) -> None:
        for seat in self._seats:
            seat.ask_to_stop()
        for seat in self._seats:
            if seat.command is not None:
                try:
                    code = seat.command.wait(CALM).code
                except AssertionError as error:
                    self._violations.append(Violation("does not stop", None, str(error)))
                    continue
                if code:
                    self._violations.append(Violation("exit code", None, f"{code}: {seat.command}"))
            seat.tend_last(time.monotonic())
            self._violations += [Violation("complaint", None, text) for text in seat.complaints]
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._place.end_pooler()
        with self._place.connect() as connection:
            # A session ends a moment after its client.
            self._violations += self._in_time(lambda: list(check_sessions(connection, running=False)))
        self._violations += check_host(self._seats, self._journal, self._journal.with_name(RUNTIME))

    def _read(self) -> Book:
        with self._place.connect() as connection:
            return Book(
                entries=self._record.entries(connection),
                executions=executions(self._journal),
                failures=self._record.failures(connection),
                rows=self._record.rows(connection),
                tenures=self._record.tenures(connection),
                done=tuple(self._forces.done),
                deaths={pid: at for seat in self._seats for pid, at in seat.deaths.items()},
                leases_lost={number: at for seat in self._seats for number, at in seat.leases_lost.items()},
                seats={pid: seat.number for seat in self._seats for pid in seat.started},
                lease=self._plan.lease,
                bound={seat.number: seat.terms.partitions for seat in self._seats},
                kept=self._plan.terms.kept,
            )

    def _figures(self, book: Book, drained: float) -> dict[str, Any]:
        found = ways(book.entries)
        lefts = Counter(stint.left for way in found.values() for stint in way.stints)
        return {
            "harms": dict(sorted(Counter(str(done.harm) for done in book.done).items())),
            "found nobody": {str(harm): count for harm, count in sorted(self._forces.missed.items())},
            "tasks": len(book.rows),
            "orders refused while the server was away": self._unqueued,
            "ends": dict(Counter(row.status for row in book.rows)),
            "claims": sum(lefts.values()),
            "claims ended in": {str(left): count for left, count in lefts.items()},
            "reaps": sum(len(stint.reaped) for way in found.values() for stint in way.stints),
            "failures": dict(Counter(failure.outcome for failure in book.failures)),
            "executions": len(book.executions),
            "tasks executed more than once": sum(
                count > 1 for count in Counter(execution.task_id for execution in book.executions).values()
            ),
            "supervisors started": sum(len(seat.started) for seat in self._seats),
            "leases lost": len(book.leases_lost),
            "pruned": sum(not row.present for row in book.rows),
            "old ranges made and dropped": (self._aged, self._aged - self._old_ranges()),
            "seconds to drain": round(drained, 1),
        }

    def _old_ranges(self) -> int:
        with self._place.connect() as connection:
            [(left,)] = connection.execute(OLD_RANGES).fetchall()
        return int(left)


def run(plan: Plan, *, binaries: Path | None = None, package: Path | None = None, kind: type[Storm] = Storm) -> Report:
    """Run a storm on a server of its own, and leave nothing behind.

    :param package: a directory whose ``pgsched`` is to be used instead of this one.
    """
    directory = Path(tempfile.mkdtemp(prefix="pgsched-storm-files-"))
    journal = directory / "journal"
    seats: list[Seat] = []
    place = Place(binaries, plan.terms.partitions)
    try:
        with place.connect() as connection:
            record = Record(connection)
        library = faketime.find(directory)
        for number, terms in enumerate(plan.terms.seats):
            # The first alone, so that the wall clocks of the fleet also differ from each other.
            stepped = library if number == 0 else None
            home = package or directory
            dsn = place.pooled_dsn() if terms.pooled and bouncer.installed() else place.dsn
            seats.append(Seat(number, dsn, home, journal, plan.lease, stepped, terms))
        forces = Forces(place, seats, clocks=library is not None)
        book, violations, figures = kind(plan, place, seats, forces, record, journal).run()
        return Report(plan, book, violations, figures, list(_remarks(plan, place, library)))
    finally:
        for seat in seats:
            seat.close()
        place.close()
        shutil.rmtree(directory, ignore_errors=True)
        faketime.forget(pid for seat in seats for pid in seat.started)


def _remarks(plan: Plan, place: Place, library: str | None) -> Iterator[str]:
    if plan.terms.pooled and not bouncer.installed():
        yield f"nobody went through a pooler: {bouncer.MISSING}"
    if not place.small:
        yield "no disk was filled: that needs root and the right to mount"
    if library is None:
        yield f"no clock was stepped: {faketime.MISSING}"
