"""How the user's app is brought into a forkserver or a worker, and how its task types travel to the parent.

The parent never does this: it runs no user code. What such a process is told comes as a message, never as an
argument or in the environment, where everybody on the host could read it.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import threading
from dataclasses import asdict
from types import FrameType
from typing import Any, Final

from pgsched.app import App
from pgsched.errors import PgschedError
from pgsched.model import Retry, TaskType
from pgsched.pool.describe import error_line, raised_at, traceback_text

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36

EXPENDABLE: Final = 200
"""Thousandths of all memory by which a worker counts as larger when the kernel looks for the largest process."""
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FRAMES: Final = (
    __file__,
    importlib.__file__,
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)

CUT: Final = 72
"""Exit code of a process in which the app has closed the socket to the parent."""
CUT_WORDS: Final = "it closes descriptors that it has not opened"

inside = False
"""Whether this process is a forkserver or a worker: a pool that is started here would start itself for ever."""


class LoadError(Exception):
    """The app cannot be loaded: one line, and the traceback as text."""

    def __init__(self, line: str, details: str = "") -> None:
        super().__init__(line)
        self.line = line
        self.details = details


def load(spec: str) -> App:
    """Import ``module:attribute`` with the current directory on the path, as ``python -m`` does.

    :raises LoadError: the import raised or left the interpreter, or what it names is no App.
    """
    name, _, attribute = spec.partition(":")
    attribute = attribute or "app"
    try:
        here = os.getcwd()
    except OSError as error:
        raise LoadError(f"cannot import {name}: the working directory is gone: {error.strerror}") from None
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
    except BaseException as error:
        raise LoadError(_why(spec, error, here), traceback_text(error, _FRAMES) or "") from None
    apps = [f"{name}:{each}" for each, value in vars(found).items() if isinstance(value, App)]
    hint = f"; {' and '.join(apps[:3])} would do" if apps else ""
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LoadError(f"{name} has no attribute {attribute}: APP must be module:attribute{hint}") from None
    if not isinstance(found, App):
        raise LoadError(f"{name}:{attribute} is {type(found).__qualname__}, must be an App{hint}")
    return found


def _why(spec: str, error: BaseException, here: str) -> str:
    """Why the import of ``module:attribute`` has failed, and where."""
    name, _, attribute = spec.partition(":")
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        if name.endswith(".py"):
            return f"cannot import {name}: a module goes without .py, as in {name.removesuffix('.py')}:{attribute}"
        return f"cannot import {name}: {error_line(error)}, neither in {here} nor among what is installed"
    # Ours tell what is wrong with a declaration; which class they are says nothing more.
    said = str(error) if isinstance(error, PgschedError) else error_line(error)
    place = raised_at(error)
    return f"cannot import {name}: {said}{f' (at {place})' if place and place not in said else ''}"


def call(spec: str | None, *arguments: int) -> Any:
    """Call ``module:callable``, which does its part for the supervisor; None for nothing.

    :raises LoadError: it cannot be had, or raised.
    """
    if spec is None:
        return None
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(*arguments)
    except Exception as error:
        raise LoadError(f"cannot call {spec}: {error_line(error)}") from None


def load_beside(spec: str, sock: socket.socket) -> App:
    """Import like :func:`load`, and end the process if that has closed the socket: nobody could be told of it there.

    :raises LoadError: see there.
    """
    inode = os.fstat(sock.fileno()).st_ino
    try:
        return load(spec)
    finally:
        # What was printed would be printed by each process that is forked from here, or by none.
        flush()
        try:
            ours = os.fstat(sock.fileno()).st_ino == inode
        except OSError:
            ours = False
        if not ours:
            os._exit(CUT)


def flush() -> None:
    """Let nothing that was printed wait in this process."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # Closed by the app or a task, or nobody reads it any more.
            continue


def describe_tasks(app: App) -> list[dict[str, Any]]:
    """The task types as JSON values."""
    return [asdict(task.type) for task in app.tasks.values()]


def read_tasks(described: list[dict[str, Any]]) -> dict[str, TaskType]:
    """The opposite of :func:`describe_tasks`.

    :raises ValueError, TypeError: the list was not made by it.
    """
    found = (TaskType(**{**fields, "retry": Retry(**fields["retry"])}) for fields in described)
    return {task_type.name: task_type for task_type in found}


def enter() -> None:
    """Make this process one of the pool: the signals that end a service are not for it."""
    global inside
    inside = True
    # Handlers, not SIG_IGN: what is ignored stays ignored in programs that a task starts, and they could not be ended.
    for number in IGNORED:
        signal.signal(number, ignore)


def release_forks() -> None:
    """Let what this process forks from now on be ended by a signal: multiprocessing relies on it."""
    held = threading.local()

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)

    def resume() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def release() -> None:
        for number in IGNORED:
            if signal.getsignal(number) is ignore:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        resume()

    # A signal that came between the fork and the change of handlers would be lost; so it waits.
    os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=release)


def socket_on_input() -> socket.socket:
    """Move the socket that is our standard input elsewhere, and leave nothing to read there.

    Whatever else was inherited is closed: a library of the supervisor's may have opened it without thinking of us.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            # The one that listed the directory is closed already.
            with contextlib.suppress(OSError):
                os.close(int(name))
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return sock


def ignore(_number: int, _frame: FrameType | None) -> None:
    """A signal handler that does nothing."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this signal when the present parent ends; 0 for none."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper(on: bool = True) -> None:
    """Have the kernel give this process the orphans among its descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def set_name(name: str) -> None:
    """The name that ``ps`` and ``top`` show, at most 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def be_expendable() -> None:
    """Have the kernel take this process before the supervisor where memory runs out, though that may be larger."""
    # Not less willing than we are already: anybody may offer more, and root alone may take it back.
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = min(int(file.read()) + EXPENDABLE, 1000)
        file.seek(0)
        file.write(str(score))


def _prctl(option: int, argument: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    value = argument if isinstance(argument, ctypes.c_char_p) else ctypes.c_ulong(argument)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
