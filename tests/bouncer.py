"""PgBouncer in transaction mode before the session's server: each transaction may get another of its sessions.

Runs in the test process. Where PgBouncer is not installed, tests that need it are skipped, and the header says so.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support import PATIENCE, eventually

POOLED = os.environ.get("PGSCHED_TEST_POOLED") == "1"
"""Whether commands of the system floor get a DSN through PgBouncer, and ``PGSCHED_POOLED``."""
MISSING = "PgBouncer is not installed (Debian: apt-get install pgbouncer)"
_PORT = 6432

# The sessions take turns, so that what one transaction left in its session is missed, or met, by the next.
_SETTINGS = """
[databases]
* = {server}
[pgbouncer]
pool_mode = transaction
server_round_robin = 1
default_pool_size = {sessions}
max_client_conn = 500
auth_type = any
listen_addr =
listen_port = {port}
unix_socket_dir = {place}
logfile = {place}/log
log_connections = 0
log_disconnections = 0
server_login_retry = 0.2
"""


def installed() -> str | None:
    """The program, or None."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Bouncer:
    """A running PgBouncer; :meth:`dsn_for` is the way through it.

    :param dsn: of the server.
    :param sessions: that it keeps there for one database and user.
    """

    def __init__(self, dsn: str, sessions: int = 5) -> None:
        program = installed()
        assert program is not None, MISSING
        parameters = conninfo_to_dict(dsn)
        self._place = Path(tempfile.mkdtemp(prefix="pgsched-bouncer-"))
        kept = {key: str(parameters[key]) for key in ("host", "port", "user", "password") if parameters.get(key)}
        settings = _SETTINGS.format(server=make_conninfo(**kept), port=_PORT, place=self._place, sessions=sessions)
        (self._place / "settings").write_text(settings)
        owner = _owner(kept.get("host", ""))
        if owner is not None:
            for path in (self._place, self._place / "settings"):
                os.chown(path, *owner)
        # As root it does not start.
        user, group = owner or (None, None)
        self._process = subprocess.Popen(
            [program, "-q", str(self._place / "settings")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            group=group,
            extra_groups=None if owner is None else [],
            cwd="/",
        )
        eventually(lambda: self._answers(dsn), "PgBouncer answers")

    def dsn_for(self, dsn: str) -> str:
        """The way through it to the database of `dsn`."""
        return make_conninfo(dsn, host=str(self._place), port=_PORT)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._place)

    def _answers(self, dsn: str) -> bool:
        assert self._process.poll() is None, (self._place / "log").read_text()
        try:
            psycopg.connect(self.dsn_for(dsn), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _owner(host: str) -> tuple[int, int] | None:
    """Whom to run as, if we are root: the server's own user gets through to its socket, whatever its rights."""
    if os.getuid() != 0:
        return None
    for found in Path(host).glob(".s.PGSQL.*") if host.startswith("/") else ():
        if found.stat().st_uid:
            return found.stat().st_uid, found.stat().st_gid
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid
