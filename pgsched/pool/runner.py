"""Runs one task after another in a worker, and reports each before it takes the next.

The main thread does everything: a task's function is called in it, and the soft signal raises in it. Whatever the
function does with exceptions ends here as text. Nothing of the parent is known but its frames and the control page.
"""

import errno
import faulthandler
import inspect
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

from pgsched import context
from pgsched.context import Interrupted, TaskContext
from pgsched.errors import UsageError
from pgsched.model import Failure, OutcomeKind
from pgsched.pool import records, wire
from pgsched.pool.describe import clean, error_line, traceback_text
from pgsched.pool.outbox import Outbox
from pgsched.pool.page import PageView
from pgsched.pool.tidy import Surroundings
from pgsched.rules.payload import to_json

SOFT_SIGNAL: Final = signal.SIGXCPU
"""Asks a task to stop: nothing else sends it but a CPU limit of the task's own, and it is no user's favourite."""
LOST_PARENT: Final = 70
"""Exit code of a worker whose socket does not work any more."""
_WEIGHED_EVERY: Final = 0.2
"""Seconds between two looks at our own size, and after brief tasks at anything."""
_SPENT: Final = (errno.EMFILE, errno.ENFILE)
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_FRAMES: Final = (__file__,)


class RunnableTask(Protocol):
    """What is used of :class:`pgsched.app.Task`."""

    @property
    def function(self) -> Callable[..., Any]:
        """Sync or async."""

    def bind_json(self, payload: str) -> dict[str, Any]:
        """The keyword arguments."""


class Recorder(Protocol):
    """Counts what has run, in files of this slot."""

    def ran(self, task_type: str, status: str, seconds: float, late: float) -> None:
        """Note one attempt."""


class Runner:
    """Serves the worker's sockets until it is told to stop.

    :param result_limit: bytes of a result's JSON.
    :param max_memory: bytes; a report says when the worker is larger.
    """

    def __init__(
        self,
        sock: socket.socket,
        tickets: socket.socket,
        page: PageView,
        tasks: Mapping[str, RunnableTask],
        *,
        result_limit: int,
        max_memory: int | None,
        recorder: Recorder | None,
    ) -> None:
        self._sock = sock
        self._tickets = tickets
        self._runs: deque[wire.Run] = deque()
        """Received; not all of them have a ticket."""
        self._page = page
        self._tasks = tasks
        self._result_limit = result_limit
        self._max_memory = max_memory
        self._recorder = recorder
        self._ends = [(end.fileno(), _inode(end.fileno())) for end in (sock, tickets)]
        self._outbox = Outbox(sock, page.outbox, self._check, cpu_seconds)
        self._poll = select.poll()
        for end in (sock, tickets):
            self._poll.register(end, select.POLLIN)
        self._armed = 0
        """Number of the run that the soft signal may interrupt; 0 for none."""
        self._pid = os.getpid()
        self._weighed_at = time.monotonic()
        self._arm()
        self._surroundings = Surroundings(self._arm)

    def serve(self) -> None:
        """Run what there are tickets for until Stop; ends the process when the parent is gone."""
        while True:
            try:
                ticket = self._ticket()
                if ticket == wire.STOP:
                    self._outbox.flush()
                    return
                run = self._run_of(wire.decode_tickets(ticket)[0])
                if not run.brief:
                    self._outbox.flush()
                self._report(run)
            except OSError as error:
                self._quit(error)
            self._surroundings.restore()

    def _ticket(self) -> bytes:
        """The next ticket; reports wait no longer when there is none."""
        if self._outbox.count:
            try:
                return self._checked(self._tickets.recv(wire.TICKET_SIZE, socket.MSG_DONTWAIT))
            except BlockingIOError:
                self._outbox.flush()
        if not self._runs:
            # A run comes first; to read it takes as long as its ticket needs to follow.
            self._poll.poll()
            self._read_ahead()
        return self._checked(self._tickets.recv(wire.TICKET_SIZE))

    def _read_ahead(self) -> None:
        with suppress(BlockingIOError):
            self._runs.extend(wire.decode_runs(*self._received(socket.MSG_DONTWAIT)))

    def _run_of(self, number: int) -> wire.Run:
        """The run of a ticket, which was sent before it; those before it whose tickets are gone were taken back."""
        while True:
            while self._runs:
                run = self._runs.popleft()
                if run.sequence == number:
                    return run
            self._runs.extend(wire.decode_runs(*self._received()))

    def _received(self, flags: int = 0) -> tuple[bytes, list[int]]:
        self._check()
        frame, descriptors = wire.receive(self._sock, flags)
        return self._checked(frame), descriptors

    def _check(self) -> None:
        """A task may have closed our sockets, and whatever it has opened since may have their numbers.

        :raises OSError: it has.
        """
        for descriptor, inode in self._ends:
            if _inode(descriptor) != inode:
                raise OSError("a task has closed its sockets, and has opened something else in their place")

    def _checked(self, received: bytes) -> bytes:
        if not received:
            self._quit(None)
        return received

    def _report(self, run: wire.Run) -> None:
        report, ended, failed = self._attempt(run)
        self._outbox.put(report, ended, failed=failed)

    def _attempt(self, run: wire.Run) -> tuple[bytes, float, bool]:
        """Make one attempt; return its report, when it ended, monotonic, and whether it failed."""
        started = time.monotonic()
        sequence = run.sequence
        deadline = None if run.timeout == math.inf else started + run.timeout
        context.enter(
            TaskContext(
                run.task_id,
                run.task_type,
                run.queue,
                run.attempt,
                run.fence,
                run.max_retries,
                deadline,
                lambda: self._reason(sequence),
            )
        )
        code, status = records.RETURNED, "completed"
        try:
            body = self._call(run)
        except BaseException as error:
            self._armed = 0
            code, status = records.RAISED, self._status(sequence)
            body = records.encode_failure(_failure(error))
        if os.getpid() != self._pid:
            # The task forked and its other half came back here as well: it must neither count nor answer in our name.
            os._exit(0)
        context.enter(None)
        ended = time.monotonic()
        seconds = ended - started
        if self._recorder is not None:
            self._record(run.task_type, status, seconds, started - run.due)
        flags = self._wear(run.brief, ended)
        return records.encode_report(sequence, code, flags, seconds, body), ended, code == records.RAISED

    def _call(self, run: wire.Run) -> str:
        """Call the function and return its result as JSON, empty for None."""
        try:
            task = self._tasks[run.task_type]
            if not run.payload:
                raise _Unusable("payload is too large: over 64 MiB as text")
            arguments = task.bind_json(run.payload)
        except KeyError:
            raise _Unusable(f"task type {run.task_type!r} is not known to this worker") from None
        except UsageError as error:
            raise _Unusable(str(error)) from None
        self._armed = run.sequence
        try:
            value = task.function(**arguments)
            if inspect.iscoroutine(value):
                # Imported only by workers that need it.
                import asyncio

                value = asyncio.run(value)
        finally:
            self._armed = 0
        if value is None:
            return ""
        try:
            return to_json(value, self._result_limit)
        except UsageError as error:
            raise _Unusable(f"result not storable: {error}") from None

    def _status(self, sequence: int) -> str:
        """What the recorder calls an attempt that raised."""
        stop = self._page.asked(sequence)
        return str(stop.kind) if stop and stop.kind in (OutcomeKind.CANCELLED, OutcomeKind.INTERRUPTED) else "failed"

    def _reason(self, sequence: int) -> str | None:
        stop = self._page.asked(sequence)
        return None if stop is None else stop.reason

    def _arm(self) -> None:
        """Install the soft signal's handlers: first faulthandler's, which writes the stacks even while C code keeps
        the interpreter, then, chained to it, ours, which raises as soon as Python code runs again."""
        faulthandler.unregister(SOFT_SIGNAL)
        signal.signal(SOFT_SIGNAL, self._interrupt)
        faulthandler.register(SOFT_SIGNAL, file=self._page.descriptor, all_threads=True, chain=True)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        sequence, stop = self._armed, None
        if sequence:
            stop = self._page.asked(sequence)
        # A signal that comes too late must not hit what runs next.
        if stop is not None:
            self._armed = 0
            raise Interrupted(stop.kind, stop.reason)

    def _record(self, task_type: str, status: str, seconds: float, late: float) -> None:
        assert self._recorder is not None
        try:
            self._recorder.ran(task_type, status, seconds, late)
        except Exception as error:
            self._recorder = None
            sys.stderr.write(f"pgsched: metrics of this worker are switched off: {error_line(error)}\n")

    def _wear(self, brief: bool, now: float) -> int:
        """Why another worker should have the next tasks, as flags of a report; not looked for after each brief task."""
        due = now - self._weighed_at >= _WEIGHED_EVERY
        if brief and not due:
            return 0
        if due:
            self._weighed_at = now
        try:
            # A large payload comes with a descriptor, or not at all.
            os.close(os.dup(self._page.descriptor))
            if not due or self._max_memory is None:
                return 0
            with open("/proc/self/statm", "rb") as file:
                size = int(file.read().split()[1]) * _PAGE_SIZE
        except OSError as error:
            return records.SPENT if error.errno in _SPENT else 0
        return records.WORN if size > self._max_memory else 0

    def _quit(self, error: OSError | None) -> NoReturn:
        if error is not None:
            sys.stderr.write(f"pgsched: the worker cannot speak to its supervisor: {error}\n")
        os._exit(LOST_PARENT)


def _inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def cpu_seconds() -> float:
    """What this process and its ended children have used since its birth."""
    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


class _Unusable(Exception):
    """The arguments or the result of a task cannot be used; the text says all there is to say."""


def _failure(error: BaseException) -> Failure:
    unusable = isinstance(error, _Unusable)
    return Failure(
        error=clean(str(error)) if unusable else error_line(error),
        traceback=None if unusable else traceback_text(error, _FRAMES),
        peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        out_of_memory=True if isinstance(error, MemoryError) else None,
    )
