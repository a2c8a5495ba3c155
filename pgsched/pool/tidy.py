"""What a worker puts back between two tasks, so that one task's doings are not the next one's surroundings.

Put back: current directory, umask, ``os.environ``, the handlers of the signals below, the signal mask, alarms and
interval timers, ``sys.stdin``/``stdout``/``stderr``, the recursion limit. Not put back: threads, open files, modules
and what is in them, the state of random number generators (they are seeded once, when the worker starts), resource
limits. ``max_tasks_per_worker=1`` gives every task a fresh process. Runs in the worker.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO

_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXCPU,
)
_TIMERS: Final = tuple(map(int, (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)))
_SETMASK: Final = int(signal.SIG_SETMASK)
# What signal's functions wrap: they turn every answer into an enum, which takes longer than all the rest done here.
_raw: Final[Any] = sys.modules.get("_signal", signal)
_handler_of: Final[Callable[[int], Any]] = _raw.getsignal
_NUMBERS: Final = tuple(map(int, _SIGNALS))
_NO_TIMERS: Final = [(0.0, 0.0)] * len(_TIMERS)


class Surroundings:
    """Taken when it is made; :meth:`restore` costs three microseconds when nothing was changed.

    :param rearm: installs the handler of SIGXCPU anew.
    """

    def __init__(self, rearm: Callable[[], None]) -> None:
        self._rearm = rearm
        self._directory = _working_directory()
        self._umask = os.umask(0o22)
        os.umask(self._umask)
        self._environment = dict(os.environ)
        self._variables = _variables().copy()
        self._handlers = list(map(_handler_of, _NUMBERS))
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._recursion = sys.getrecursionlimit()

    def restore(self) -> None:
        """Put everything back that was changed."""
        if (sys.stdin, sys.stdout, sys.stderr) != self._streams:
            sys.stdin, sys.stdout, sys.stderr = self._streams
        try:
            self._streams[1].flush()
            self._streams[2].flush()
        except Exception:
            # Closed by a task, or no file but something that the app has put in its place.
            self._reopen()
        if list(map(_raw.getitimer, _TIMERS)) != _NO_TIMERS:
            for timer in _TIMERS:
                signal.setitimer(timer, 0.0)
        if list(map(_handler_of, _NUMBERS)) != self._handlers:
            for number, handler in zip(_NUMBERS, self._handlers, strict=True):
                if _handler_of(number) is not handler:
                    self._restore_handler(number, handler)
        _raw.pthread_sigmask(_SETMASK, self._mask)
        os.umask(self._umask)
        if sys.getrecursionlimit() != self._recursion:
            sys.setrecursionlimit(self._recursion)
        if _variables() != self._variables:
            self._restore_environment()
        if self._directory is not None and _working_directory() != self._directory:
            # Ours may be gone by now.
            with contextlib.suppress(OSError):
                os.chdir(self._directory)

    def _reopen(self) -> None:
        """A task has closed what it prints to; the descriptors below are still there."""
        if getattr(sys.stdout, "closed", False):
            sys.stdout = _printer(1)
        if getattr(sys.stderr, "closed", False):
            sys.stderr = _printer(2)
        self._streams = (sys.stdin, sys.stdout, sys.stderr)

    def _restore_handler(self, number: int, handler: Any) -> None:
        if number == signal.SIGXCPU:
            self._rearm()
        elif handler is not None:
            signal.signal(number, handler)

    def _restore_environment(self) -> None:
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        os.environ.update(self._environment)
        self._variables = _variables().copy()


def _working_directory() -> str | None:
    """None where it is gone: a deployment may remove the release that the supervisor was started in."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _variables() -> dict[Any, Any]:
    # What os.environ holds inside: to compare it through the mapping would decode every variable after every task.
    return getattr(os.environ, "_data", None) or dict(os.environ)


def _printer(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)
