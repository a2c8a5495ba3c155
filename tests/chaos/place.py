"""The storm's own PostgreSQL server, whose disks can be filled and whose processes can be killed.

Tables and write-ahead log each lie on a small file system in memory, where we are root and may mount one; elsewhere
its disks cannot be filled, and :attr:`Place.small` says so. Runs in the storm's process.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgsched.errors import DatabaseError
from pgsched.ops import wheel
from pgsched.ops.cluster import SUPERUSER, Cluster, Owner, run_as
from pgsched.store.schema import migrate
from tests.bouncer import Bouncer

SIZES = {"tables": 384, "log": 96}
"""MiB of each small file system."""
SETTINGS = {
    # Nothing here stops the machine, and what a killed process has handed to the kernel is not lost.
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "max_locks_per_transaction": "256",
    "max_wal_size": "24MB",
    "min_wal_size": "4MB",
    "checkpoint_timeout": "30s",
    "autovacuum_naptime": "5s",
    "deadlock_timeout": "100ms",
    "log_line_prefix": "'%m [%p] %a '",
}
START = 30.0
SESSIONS = 20
"""Of the pooler: so many that nobody waits for one that somebody else has been cut off from."""
BURST = "SELECT pg_logical_emit_message(false, 'storm', repeat('x', 1000000))"


class Place:
    """The server's directory. Made, started and migrated at once; :meth:`close` leaves nothing.

    :param binaries: the directory of initdb and postgres; None for the embedded server's.
    :param partitions: into how many the live tasks are split.
    """

    def __init__(self, binaries: Path | None, partitions: int = 1) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="pgsched-storm-"))
        self.root.chmod(0o711)
        self._mounts: list[Path] = []
        self._pooler: Bouncer | None = None
        try:
            owner = wheel.owner(self.root)
            self.small = self._make_disks(owner)
            self.cluster = Cluster(binaries or wheel.binaries(self.root, owner), self.root / "data", owner)
            self._create(owner)
            self.cluster.start(self.root / "run", {}, START)
            self.dsn = f"host={self.root}/run port=5432 user={SUPERUSER} dbname=storm"
            self._prepare(partitions)
        except BaseException:
            self.close()
            raise

    def connect(self, application_name: str = "storm") -> psycopg.Connection[Any]:
        """A connection for the storm itself, past every proxy."""
        return psycopg.connect(self.dsn, autocommit=True, application_name=application_name, connect_timeout=5)

    def pooled_dsn(self) -> str:
        """The way through PgBouncer, which is started for it."""
        self._pooler = self._pooler or Bouncer(self.dsn, SESSIONS)
        return self._pooler.dsn_for(self.dsn)

    def end_pooler(self) -> None:
        """Stop PgBouncer, if there is one, with the sessions that it keeps."""
        if self._pooler is not None:
            self._pooler.close()
            self._pooler = None

    def tend(self) -> None:
        """Start the server again where it has ended, as systemd would."""
        if self.cluster.endpoint() is None:
            self.cluster.forget_dead(self.root / "run")
            with contextlib.suppress(DatabaseError):
                self.cluster.start(self.root / "run", {}, START)

    def wait(self, seconds: float) -> None:
        """Wait until the server takes connections.

        :raises DatabaseError: it does not.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.tend()
            try:
                self.connect().close()
            except psycopg.Error as error:
                if time.monotonic() > deadline:
                    raise DatabaseError(f"the storm's server does not come back: {error}") from None
                time.sleep(0.1)
            else:
                return

    def fill(self, disk: str) -> None:
        """Leave no block free on one of the disks."""
        with (self.root / disk / "ballast").open("ab") as file:
            for size in (1 << 20, 1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.write(file.fileno(), b"\0" * size)
        if disk == "log":
            # Segments that were made ahead are used up; without room for another one the server panics.
            with contextlib.suppress(psycopg.Error), self.connect() as connection:
                for _ in range(2 * SIZES["log"]):
                    connection.execute(BURST)

    def empty(self, disk: str) -> None:
        """Free what :meth:`fill` took."""
        (self.root / disk / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the server and remove everything."""
        self.end_pooler()
        for disk in SIZES:
            self.empty(disk)
        if hasattr(self, "cluster") and self.cluster.endpoint() is not None:
            with contextlib.suppress(DatabaseError):
                self.cluster.stop(30)
        for mount in self._mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def _make_disks(self, owner: Owner | None) -> bool:
        for disk, size in SIZES.items():
            path = self.root / disk
            path.mkdir()
            options = f"size={size}m,mode=0700" + (f",uid={owner.uid},gid={owner.gid}" if owner else "")
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
            if os.geteuid() == 0 and not subprocess.run(command, check=False, capture_output=True).returncode:
                self._mounts.append(path)
        return len(self._mounts) == len(SIZES)

    def _create(self, owner: Owner | None) -> None:
        for name in ("data", "run", *SIZES):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
            if owner is not None:
                os.chown(self.root / name, owner.uid, owner.gid)
        for name in ("log/wal", "tables/space"):
            run_as(owner, ["/bin/mkdir", "-m", "700", str(self.root / name)], 10)
        arguments = ["-D", str(self.root / "data"), "-X", str(self.root / "log/wal"), "-U", SUPERUSER]
        more = ["--wal-segsize=1", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        run_as(owner, [str(self.cluster.binaries / "initdb"), *arguments, *more], 60)
        with (self.root / "data/postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())

    def _prepare(self, partitions: int) -> None:
        with psycopg.connect(make_conninfo(self.dsn, dbname="postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{self.root}/tables/space'".encode())
            connection.execute("CREATE DATABASE storm TABLESPACE small")
        migrate(self.dsn, partitions=partitions)
