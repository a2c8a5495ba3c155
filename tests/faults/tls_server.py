"""A real server that takes nothing but TLS, under a CA of the test's own; the embedded one is built without.

Certificates are made by ``openssl``. The server is Debian's, where it is installed.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from psycopg.conninfo import make_conninfo

from pgsched.ops import wheel
from pgsched.ops.cluster import Cluster, run_as
from pgsched.store.schema import migrate
from tests.support import Server

NAME = "db.test"
"""The server's, and nobody's in any DNS."""
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
MISSING = "there is no PostgreSQL with TLS, or no openssl (Debian: apt-get install postgresql openssl)"


def installed() -> bool:
    return bool(PROGRAMS and shutil.which("openssl"))


class Authority:
    """A CA, and its certificate in a file."""

    def __init__(self, place: Path, name: str) -> None:
        self._place = place
        self._name = name
        self.certificate = place / f"{name}.pem"
        _openssl(place, "req", "-x509", *_key(f"{name}.key"), "-out", self.certificate.name, "-subj", f"/CN={name}")

    def sign(self, host: str) -> None:
        """Make ``server.key`` and ``server.crt`` for a host."""
        (self._place / "names").write_text(f"subjectAltName=DNS:{host}\n")
        _openssl(self._place, "req", *_key("server.key"), "-out", "server.csr", "-subj", f"/CN={host}")
        signer = ("-CA", self.certificate.name, "-CAkey", f"{self._name}.key", "-CAcreateserial")
        _openssl(self._place, "x509", "-req", "-in", "server.csr", *signer, "-extfile", "names", "-out", "server.crt")


class TlsServer:
    """The server, with the schema.

    :param place: a directory that the server's user can enter.
    :param name: what its certificate says.
    """

    def __init__(self, place: Path, port: int, name: str = NAME) -> None:
        self.port = port
        self._name = name
        self._owner = wheel.owner(place)
        self.keys = place / "keys"
        self.keys.mkdir(mode=0o755)
        self.authority = Authority(self.keys, "authority")
        self.another = Authority(self.keys, "another")
        data = place / "data"
        data.mkdir(mode=0o700)
        self._cluster = Cluster(PROGRAMS[0], data, self._owner)
        self.certify(self.authority)
        self._give(data)
        initdb = (str(PROGRAMS[0] / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8")
        run_as(self._owner, [*initdb, "--locale=C.UTF-8", "--no-sync"], 60)
        rules = (
            "local all all trust",
            "hostssl all worker 127.0.0.1/32 scram-sha-256",
            "hostssl all all 127.0.0.1/32 trust",
            "host all plain 127.0.0.1/32 trust",
        )
        (data / "pg_hba.conf").write_text("\n".join(rules) + "\n")
        run = place / "run"
        run.mkdir(mode=0o700)
        self._give(run)
        files = {"ssl_cert_file": str(data.parent / "server.crt"), "ssl_key_file": str(data.parent / "server.key")}
        settings = {"ssl": "on", "listen_addresses": "127.0.0.1", "port": str(port), "fsync": "off", **files}
        self._cluster.start(run, {**settings, "log_connections": "on", "max_locks_per_transaction": "256"}, 30)
        local = make_conninfo("", host=str(run), port=port, user="postgres", dbname="postgres")
        self.server = Server(local)
        # Alone among all roles it may come without TLS.
        self.server.sql("CREATE ROLE plain LOGIN SUPERUSER")
        migrate(local)

    def dsn(self, **parameters: str) -> str:
        """The way there, verified."""
        verified = {"sslmode": "verify-full", "sslrootcert": str(self.authority.certificate)}
        there = {"host": self._name, "hostaddr": "127.0.0.1", "port": str(self.port), "dbname": "postgres"}
        return make_conninfo("", **{"user": "postgres", **there, **verified, **parameters})

    def certify(self, authority: Authority) -> None:
        """From its next start, or :meth:`reload`, on the server's certificate is signed by this CA."""
        authority.sign(self._name)
        for name in ("server.key", "server.crt"):
            target = self.keys.parent / name
            shutil.copy(self.keys / name, target)
            target.chmod(0o600)
            self._give(target)

    def reload(self) -> None:
        self.server.sql("SELECT pg_reload_conf()")

    def connected(self) -> list[tuple[str, bool]]:
        """Of each connection that was made so far: the client's name, and whether it was encrypted."""
        lines = re.findall(
            r"connection authorized: .*application_name=(pgsched.*)$", self._cluster.log.read_text(), re.M
        )
        return [(line.split(" SSL ")[0], " SSL enabled " in line) for line in lines]

    def close(self) -> None:
        self.server.close()
        self._cluster.stop(30)

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner.uid, self._owner.gid)


def _key(name: str) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", name)


def _openssl(place: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
