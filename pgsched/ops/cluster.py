"""One PostgreSQL data directory and the server on it.

Runs the binaries initdb, pg_ctl and postgres, and reads ``postmaster.pid``; it never logs in.
It does not decide where the directory is, who may use it, or when the server ends: ``embedded`` does, and it holds
the locks that make every method here safe to call. Runs in the process that needs the server, before any loop.
"""

import os
import shlex
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pgsched.errors import DatabaseError, UsageError

SUPERUSER = "postgres"
DATABASE = "postgres"
PORT = 5432
LOG_LIMIT = 10 * 1024 * 1024

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""The protocol's shortest question; the answer is one byte."""

CREDENTIALS = struct.Struct("iII")
"""What the kernel says of a peer: process, user, group."""

DEFAULTS = {
    # Written into postgresql.conf when the directory is made, so a user can change them there.
    "autovacuum_naptime": "15s",  # a queue's table turns over many times a minute
    "max_locks_per_transaction": "256",  # a claim takes one advisory lock per task of its batch
    "log_line_prefix": "%m [%p] %a ",
}


class Owner(NamedTuple):
    """The operating system's user that the server runs as."""

    name: str
    uid: int
    gid: int


class Endpoint(NamedTuple):
    """Where a running server listens, as ``postmaster.pid`` says."""

    pid: int
    data: Path
    port: int
    socket_directory: str
    status: str

    @property
    def ready(self) -> bool:
        """Whether it takes connections."""
        return self.status == "ready"

    @property
    def starting(self) -> bool:
        """Whether it recovers from a crash, or has not said otherwise."""
        return self.status in ("", "starting")


class Cluster:
    """A data directory, the binaries for it, and the user who owns it.

    :param binaries: the directory that holds initdb, pg_ctl and postgres.
    :param data: the data directory; its parent exists, and this process may write there.
    :param owner: None: the user of this process.
    """

    def __init__(self, binaries: Path, data: Path, owner: Owner | None) -> None:
        self.binaries = binaries
        self.data = data
        self.owner = owner
        self.log = data / "server.log"

    def exists(self) -> bool:
        """Whether the data directory was made."""
        return (self.data / "PG_VERSION").exists()

    def check_version(self) -> None:
        """Refuse a directory that another major version made.

        :raises UsageError: names both versions.
        """
        found = (self.data / "PG_VERSION").read_text().strip()
        ours = self._run("postgres", "-V").split()[2].split(".")[0]
        if found != ours:
            raise UsageError(
                f"{self.data} was made by PostgreSQL {found}, and the embedded server is PostgreSQL {ours}: "
                "move it with pg_dump, or set PGSCHED_DATA_DIR to another directory"
            )

    def create(self) -> None:
        """Make the data directory; whole or not at all, because it gets its name last.

        :raises DatabaseError: initdb failed; its own last line tells why.
        """
        unfinished = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if self.owner is not None:
            os.chown(unfinished, self.owner.uid, self.owner.gid)
        settings = [option for name, value in DEFAULTS.items() for option in ("-c", f"{name}={value}")]
        self._run(
            "initdb",
            *("-D", str(unfinished), "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject"),
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *("--no-sync", "--no-instructions", *settings),
        )
        # One pass at the end costs a quarter of what initdb's own syncing does, and is as safe before the rename.
        self._run("initdb", "-D", str(unfinished), "--sync-only")
        unfinished.rename(self.data)
        directory = os.open(self.data.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def start(self, socket_directory: Path, settings: Mapping[str, str], timeout: float) -> None:
        """Start the server, and return when it takes connections.

        The server leads its own session: a terminal's Ctrl-C, which would be its order to stop, does not reach it.

        :raises DatabaseError: it did not start; the message carries the server's own last FATAL line.
        """
        self._turn_log_over()
        offset = self.log.stat().st_size if self.log.exists() else 0
        fixed = {"listen_addresses": "", "unix_socket_directories": str(socket_directory), "port": str(PORT)}
        options = [f"-c {shlex.quote(f'{name}={value}')}" for name, value in {**fixed, **settings}.items()]
        arguments = ("-w", "-t", str(round(timeout)), "-l", str(self.log), "-o", " ".join(options))
        try:
            self._run("pg_ctl", "start", "-D", str(self.data), *arguments, timeout=timeout + 10)
        except DatabaseError as error:
            reason = self._last_complaint(offset) or str(error)
            raise DatabaseError(f"the embedded server did not start: {reason} (log: {self.log})") from None

    def stop(self, timeout: float) -> None:
        """Stop the server (fast: sessions are ended, everything is on disk), and wait for its end.

        :raises DatabaseError: it still runs after `timeout` seconds.
        """
        arguments = ("stop", "-D", str(self.data), "-m", "fast", "-w", "-t", str(round(timeout)))
        try:
            self._run("pg_ctl", *arguments, timeout=timeout + 10)
        except DatabaseError:
            # pg_ctl also complains about a server that has died by itself just now.
            if self.endpoint() is not None:
                raise

    def endpoint(self) -> Endpoint | None:
        """The live server of this directory, or None.

        A pid in a file proves nothing after a crash, in a container, or on a shared file system; whether somebody
        answers on the socket, and as whom, is the truth.
        """
        noted = self._noted()
        if noted is None or not self._answers(Path(noted.socket_directory, f".s.PGSQL.{noted.port}")):
            return None
        return noted

    def wait_ready(self, timeout: float) -> Endpoint | None:
        """Like :meth:`endpoint`, but waits while the server that is there recovers from a crash."""
        deadline = time.monotonic() + timeout
        while (endpoint := self.endpoint()) is not None and not endpoint.ready:
            if time.monotonic() > deadline:
                raise DatabaseError(f"the embedded server is still starting after {timeout:.0f} s (log: {self.log})")
            time.sleep(0.02)
        return endpoint

    def pid(self) -> int | None:
        """The process that ``postmaster.pid`` names, whether it lives or not."""
        noted = self._read()
        return None if noted is None else noted.pid

    def forget_dead(self, socket_directory: Path) -> None:
        """Remove a ``postmaster.pid`` whose process is gone or serves other data, and the lock of a socket of ours.

        PostgreSQL does that itself unless the pid is in use, which is the rule in a restarted container and for a
        copy of a directory whose server runs.
        Only for a caller who knows that nobody uses the directory.

        :param socket_directory: where only a server of this directory has its socket.
        """
        noted = self._read()
        if noted is None or self.endpoint() is not None:
            return
        try:
            if Path(f"/proc/{noted.pid}/cwd").resolve(strict=True) == self.data.resolve():
                return
        except OSError:
            pass
        # The pid file last: who is killed in between is followed by somebody who still finds it.
        (socket_directory / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _run(self, program: str, *arguments: str, timeout: float = 60) -> str:
        return run_as(self.owner, [str(self.binaries / program), *arguments], timeout)

    def _answers(self, address: Path) -> bool:
        user = os.geteuid() if self.owner is None else self.owner.uid
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                # Below /tmp a name outlives its directory, and anybody may have taken it since.
                if address.stat().st_uid != user:
                    return False
                probe.connect(str(address))
                _, peer, _ = CREDENTIALS.unpack(
                    probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                )
                # A sandbox may tell our own user of every peer.
                if peer not in (user, os.geteuid()):
                    return False
                probe.sendall(SSL_REQUEST)
                # A server that is being killed still takes connections, but starts no process that would answer.
                return bool(probe.recv(1))
            except (BlockingIOError, TimeoutError):
                return True  # a full backlog, or no processor to spare: alive, and busy
            except OSError:
                return False

    def _noted(self) -> Endpoint | None:
        """What ``postmaster.pid`` says, unless it came here with a copy of another directory."""
        noted = self._read()
        try:
            # Not by name: a path may have changed since, or hold a link.
            return noted if noted is not None and noted.data.samefile(self.data) else None
        except OSError:
            return None

    def _read(self) -> Endpoint | None:
        try:
            lines = os.fsdecode((self.data / "postmaster.pid").read_bytes()).split("\n")
            # The last line comes when the server knows its state.
            status = "".join(lines[7:8]).strip()
            return Endpoint(int(lines[0]), Path(lines[1]), int(lines[3]), lines[4], status)
        except (OSError, ValueError, IndexError):
            return None

    def _turn_log_over(self) -> None:
        try:
            if self.log.stat().st_size > LOG_LIMIT:
                self.log.replace(self.log.with_suffix(".log.1"))
        except FileNotFoundError:
            pass

    def _last_complaint(self, offset: int) -> str | None:
        try:
            with self.log.open(errors="replace") as log:
                log.seek(offset)
                lines = log.read().splitlines()
        except OSError:
            return None
        complaints = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
        return " ".join(complaints[-1].split("]", 1)[-1].split()) if complaints else None


def run_as(user: Owner | None, command: Sequence[str], timeout: float) -> str:
    """Run a program to its end, and return what it printed.

    :param user: None: the user of this process.
    :raises DatabaseError: it cannot be run, failed, or took longer than `timeout` seconds.
    """
    program = Path(command[0]).name
    # Nothing of the caller's environment: PGPORT, PGOPTIONS and the like would change what the server does, and
    # secrets have no business in a process of another user.
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if zone := os.environ.get("TZ"):
        environment["TZ"] = zone
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A session of its own, so that a second Ctrl-C cannot cut the orderly stop short.
            start_new_session=True,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
            umask=0o077,
            timeout=timeout,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DatabaseError(f"{program} did not end within {timeout:.0f} s") from None
    except OSError as error:
        raise DatabaseError(f"{program} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "error" in line.lower() or "could not" in line]
        complaint = lines[0] if lines else done.stdout.strip() or f"exit code {done.returncode}"
        raise DatabaseError(f"{program} failed: {' '.join(complaint.split())}")
    return done.stdout
