"""A Redis server of our own, on a Unix socket, that keeps what it is given. Needs Debian's ``redis-server``."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

START = 10.0
SOCKET, LOG = "socket", "log"


def binary() -> str | None:
    """The server's path, or None where it is not installed."""
    return shutil.which("redis-server")


@contextmanager
def redis_server() -> Iterator[str]:
    """Run the server; yield the path of its socket. Its files are removed afterwards."""
    command = binary()
    if command is None:
        raise RuntimeError("redis-server is not installed")
    # On the disk that PostgreSQL has too: /tmp is in memory on many hosts.
    place = None if "TMPDIR" in os.environ or not os.access("/var/tmp", os.W_OK) else "/var/tmp"
    with TemporaryDirectory(prefix="pgsched-bench-", dir=place) as directory:
        process = subprocess.Popen(
            [command, *_options(Path(directory))], stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield _wait(process, Path(directory))
        finally:
            process.kill()
            process.wait()


def _options(directory: Path) -> list[str]:
    # An append-only file, synced once a second, is what Redis documents as the default and as fast enough
    # (redis.io/docs/latest/operate/oss_and_stack/management/persistence/#append-only-file). PostgreSQL syncs every
    # commit. No snapshots beside it: they would only take its time.
    files = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--dir", str(directory)]
    return ["--port", "0", "--unixsocket", str(directory / SOCKET), "--logfile", str(directory / LOG), *files]


def _wait(process: "subprocess.Popen[bytes]", directory: Path) -> str:
    deadline = time.monotonic() + START
    while not (directory / SOCKET).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            log = directory / LOG
            raise RuntimeError(f"redis-server does not start: {log.read_text()[-1000:] if log.exists() else ''}")
        time.sleep(0.02)
    return str(directory / SOCKET)
