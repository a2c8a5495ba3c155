"""A private server of PostgreSQL 15, the oldest that pgsched supports, where Debian's package is installed.

Its settings are those of the embedded server, so that the two can be compared. It keeps nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from benchmarks.server import Server
from pgsched.ops import wheel
from pgsched.ops.cluster import DATABASE, DEFAULTS, SUPERUSER, Cluster, run_as

BINARIES = Path("/usr/lib/postgresql/15/bin")
TIMEOUT = 60.0


@contextmanager
def oldest_server() -> Iterator[Server | None]:
    """Start the server, and stop and remove it after the body; None where it is not installed."""
    if not (BINARIES / "postgres").exists():
        yield None
        return
    # Where the embedded one lies too: see there.
    beside = None if "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK) else "/var/tmp"
    with TemporaryDirectory(prefix="pgsched-bench-", dir=beside) as directory:
        owner = wheel.owner(Path(directory))
        if owner is not None:
            # As root the server runs as another user, who needs a directory of his own.
            os.chown(directory, owner.uid, owner.gid)
        cluster = Cluster(BINARIES, Path(directory) / "data", owner)
        _create(cluster)
        try:
            cluster.start(Path(directory), {}, TIMEOUT)
            yield Server(f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(directory, safe='')}&port=5432")
        finally:
            cluster.stop(TIMEOUT)


def _create(cluster: Cluster) -> None:
    # Not by the cluster itself: its locale is one that PostgreSQL 15 does not know.
    initdb = [str(BINARIES / "initdb"), "-D", str(cluster.data), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8"]
    run_as(cluster.owner, [*initdb, "--locale=C.UTF-8"], TIMEOUT)
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.writelines(f"{name} = '{value}'\n" for name, value in DEFAULTS.items())
