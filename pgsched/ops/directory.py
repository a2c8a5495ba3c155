"""The directory in which the metrics of one supervisor and its workers live, one set of files a slot.

Private to the supervisor that made it, and new for each: so nothing old is ever read, and two supervisors that share
a parent directory, a process number, or a container volume never meet. A lock on the directory tells whether
its supervisor lives; the next one to start removes what dead ones left. Runs in the parent, before the pool.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from pgsched.errors import ResourceError, UsageError

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client looks; workers inherit it, so metrics of the user's own land on the same page."""
PREFIX = "pgsched-metrics-"
RESERVED = 128 * 1024
"""Bytes that a file gets at once; a power of two, as prometheus_client doubles it."""
LOOKED_AT = 128
"""Directories looked at when clearing up: a start must not take long because of somebody else's mess."""

PASSING = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE))
"""What keeps a directory from being made, and may pass by itself."""


class MetricsDirectory:
    """A directory of metrics files, held from :func:`make_directory` until :meth:`close`."""

    def __init__(self, path: Path, lock: int, environ: MutableMapping[str, str], previous: str | None) -> None:
        self.path = path
        self._lock = lock
        self._environ = environ
        self._previous = previous

    def close(self) -> None:
        """Remove the directory and put the environment back; to be called when no worker is left."""
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1
        if self._previous is None:
            self._environ.pop(VARIABLE, None)
        else:
            self._environ[VARIABLE] = self._previous


def make_directory(environ: MutableMapping[str, str] | None = None) -> MetricsDirectory:
    """Make a fresh directory and point ``PROMETHEUS_MULTIPROC_DIR`` at it, for this process and those it starts.

    :param environ: default ``os.environ``. If it names a directory already, ours is made inside, and whatever else
        is in there is left alone.
    :raises UsageError: no directory can be made.
    :raises ResourceError: none can be made now.
    """
    environ = os.environ if environ is None else environ
    previous = environ.get(VARIABLE) or None
    parent = _parent(environ, previous)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path, lock = _make_locked(parent)
    except OSError as error:
        if error.errno in PASSING:
            raise no_room(parent, error) from None
        raise UsageError(
            f"{VARIABLE} {str(parent)!r}: must be a directory that can be written to and locked ({error.strerror})"
        ) from None
    _remove_abandoned(parent)
    environ[VARIABLE] = str(path)
    return MetricsDirectory(path, lock, environ, previous)


def no_room(parent: Path, error: OSError) -> ResourceError:
    """The error of a start that finds no room for its metrics."""
    return ResourceError(f"{VARIABLE} {str(parent)!r}: no room for metrics ({error.strerror})")


def reserve(path: Path, size: int = RESERVED) -> None:
    """Give a file its blocks before it is mapped: a write into a mapped hole on a full disk would be a SIGBUS.

    :raises OSError: there is no room.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size < size:
            os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def slot_identity(slot: int) -> str:
    """How files of a slot are named: by what all its workers have in common."""
    return f"slot{slot}"


def forget_gauges(directory: Path, identity: str) -> None:
    """Remove what a dead process said of itself: counts stay true, a gauge does not."""
    for path in directory.glob(f"gauge_*_{identity}.db"):
        path.unlink(missing_ok=True)


def _parent(environ: MutableMapping[str, str], previous: str | None) -> Path:
    # Memory rather than disk: a page that waits for write-back would block whoever touches it.
    if previous is not None:
        return Path(previous).absolute()
    for candidate in (environ.get("XDG_RUNTIME_DIR"), "/dev/shm"):
        if candidate and os.path.isdir(candidate) and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate).absolute()
    return Path(tempfile.gettempdir()).absolute()


def _make_locked(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
        lock = _locked(path)
        if lock is None:
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return path, lock
        # Another supervisor found it before it was locked, and took it for an abandoned one.
        os.close(lock)


def _locked(path: Path) -> int | None:
    """Open and lock a directory; None when it is gone, or its owner lives.

    :raises OSError: there are no locks here, or we may not open it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove_abandoned(parent: Path) -> None:
    for path in _namesakes(parent):
        with contextlib.suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _namesakes(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = (entry.name for entry in entries if entry.name.startswith(PREFIX))
            return [parent / name for name in itertools.islice(names, LOOKED_AT)]
    except OSError:
        return []
