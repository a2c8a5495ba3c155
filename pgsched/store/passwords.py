"""Passwords that live for minutes: a command or a function makes one for each new connection.

``PGSCHED_PASSWORD_COMMAND`` is run without a shell, ``PGSCHED_PASSWORD_FROM`` calls a function in a process of its own:
nothing of the user's runs in the supervisor, and what hangs is killed. Like libpq's variables they hold for every
connection whose DSN has no password. Runs wherever connections are opened, in the supervisor in a thread of its loop's.
"""

import contextlib
import math
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol

from pgsched.dsn import PASSWORD_COMMAND, PASSWORD_FROM
from pgsched.errors import DatabaseError, UsageError
from pgsched.store.redaction import one_line, remember_for_now

REUSE_SECONDS: Final = 10.0
"""Connections that are opened within so short a time share a password; those of a supervisor's start, above all."""
_LONGEST: Final = 65536
"""Bytes; an IAM token has about 1000."""


class Asked(NamedTuple):
    """A password, and whether it was made for the one who asked."""

    text: str
    fresh: bool


class Question(Protocol):
    """Whatever makes a password."""

    def ask(self, seconds: float) -> str:
        """Make one.

        :raises DatabaseError: it cannot be had, or not in time.
        """

    def give_up(self) -> None:
        """Let whoever is in :meth:`ask` now return soon."""


class Passwords:
    """The answers to one question, for all threads of a process."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._lock = threading.Lock()
        self._text: str | None = None
        self._made_at = -math.inf
        self._under_way: Future[str] | None = None

    def get(self, seconds: float) -> Asked:
        """A password that is no older than `REUSE_SECONDS`; who comes while it is made shares what comes of it.

        :raises DatabaseError: there is none to be had.
        """
        with self._lock:
            if self._text is not None and time.monotonic() - self._made_at < REUSE_SECONDS:
                return Asked(self._text, fresh=False)
            under_way = self._under_way
            if under_way is None:
                mine = self._under_way = Future()
        if under_way is not None:
            return Asked(under_way.result(), fresh=False)
        began = time.monotonic()
        try:
            text = self._question.ask(seconds)
        except BaseException as error:
            self._end(None, began)
            # Of its own, because each thread that raises one writes into it.
            mine.set_exception(DatabaseError(str(error)))
            raise
        remember_for_now(text)
        self._end(text, began)
        mine.set_result(text)
        return Asked(text, fresh=True)

    def _end(self, text: str | None, began: float) -> None:
        with self._lock:
            self._text, self._made_at, self._under_way = text, began, None

    def refused(self, asked: Asked) -> bool:
        """The server does not like it; return whether another one may be tried at once."""
        with self._lock:
            if self._text == asked.text:
                self._text = None
        return not asked.fresh

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        self._question.give_up()


class Function:
    """A function that a program has handed to its App; called here and now."""

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function

    def ask(self, seconds: float) -> str:
        """Call it; how long it takes is the program's business."""
        try:
            text = self._function()
        except Exception as error:
            raise DatabaseError(f"App(password) failed: {type(error).__name__}: {one_line(error)}") from error
        if not isinstance(text, str) or not text:
            raise DatabaseError(f"App(password) returned {type(text).__name__}, must be a text that is not empty")
        return text

    def give_up(self) -> None:
        """There is no way to."""


class Command:
    """A program that prints the password as its only line.

    :param arguments: its command line.
    :param shown: how messages call it.
    :param told: its last argument is the number of seconds that it has.
    """

    def __init__(self, arguments: list[str], shown: str, *, told: bool = False) -> None:
        self._arguments = arguments
        self._shown = shown
        self._told = told
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up: subprocess.Popen[bytes] | None = None

    def ask(self, seconds: float) -> str:
        """Run it."""
        arguments = [*self._arguments, *([str(math.ceil(seconds))] if self._told else [])]
        try:
            # A process group of its own, so that what hangs is killed with all that it has started.
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DatabaseError(f"{self._shown} cannot be run: {reason}") from None
        with process:
            self._process = process
            try:
                out, err = _heard(process, seconds)
                ended = process.poll() is not None
            finally:
                self._process = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._given_up is process:
            raise DatabaseError(f"{self._shown} was given up before it gave a password")
        return self._answer(out, err, process.returncode if ended else None, seconds)

    def give_up(self) -> None:
        """Kill it."""
        process = self._given_up = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _answer(self, out: bytes, err: bytes, code: int | None, seconds: float) -> str:
        lines = out.decode(errors="replace").splitlines()
        if code is None:
            raise DatabaseError(f"{self._shown} gave no password within {seconds:g} s")
        if code:
            # Whatever it has printed is nobody's business, and may be found among its complaints.
            for line in lines:
                remember_for_now(line.strip())
            complaints = err.decode(errors="replace").split("\n")
            reason = next((line.strip() for line in reversed(complaints) if line.strip()), "")
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            raise DatabaseError(one_line(f"{self._shown} failed ({how}){f': {reason}' if reason else ''}"))
        if len(lines) != 1 or not lines[0] or "\0" in lines[0]:
            raise DatabaseError(f"{self._shown} printed {len(lines)} lines, must print one: the password")
        return lines[0]


_known: dict[tuple[str | None, str | None], Passwords] = {}
# A child must not wait for a lock that a thread of its parent's holds.
os.register_at_fork(after_in_child=_known.clear)


def passwords(environ: Mapping[str, str] = os.environ) -> Passwords | None:
    """What the environment says makes passwords; None: nothing does.

    :raises UsageError: it makes no sense.
    """
    key = environ.get(PASSWORD_COMMAND), environ.get(PASSWORD_FROM)
    if key == (None, None):
        return None
    if key not in _known:
        _known[key] = Passwords(_command(*key))
    return _known[key]


def _command(command: str | None, function: str | None) -> Command:
    if command is not None and function is not None:
        raise UsageError("both a password command and a password function are given: leave one of them out")
    if function is not None:
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", function):
            raise UsageError(f"password function {function!r}: must be module:function, like work.rds:token")
        return Command([sys.executable, "-m", "pgsched.password", function], f"password function {function}", told=True)
    try:
        arguments = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"the password command cannot be read: {error}") from None
    if not arguments:
        raise UsageError("the password command is empty: give one, or leave it out")
    return Command(arguments, f"password command {arguments[0]}")


def _heard(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, bytes]:
    """What it says until it ends, or time is up.

    Its own end counts, and not that of the pipes, which an agent that it has started may keep open.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    until = time.monotonic() + seconds
    out, err, ended = process.stdout.fileno(), process.stderr.fileno(), os.pidfd_open(process.pid)
    said = {out: b"", err: b""}
    waiting = select.poll()
    for descriptor in (out, err, ended):
        waiting.register(descriptor, select.POLLIN)
    try:
        while (left := until - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in waiting.poll(left * 1000)]
            if ready == [ended]:
                break
            for descriptor in said.keys() & set(ready):
                data = os.read(descriptor, _LONGEST)
                # Of too much the last is kept: complaints end with what matters.
                said[descriptor] = (said[descriptor] + data)[-_LONGEST:]
                if not data:
                    waiting.unregister(descriptor)
    finally:
        os.close(ended)
    return said[out], said[err]
