"""A name server that falls silent: calls that ask for the address of :data:`HOST` never return then, as libc's do."""

from psycopg.conninfo import make_conninfo

from tests.proxy import Proxy
from tests.support import eventually
from tests.system.conftest import CommandLine

HOST = "db.test"

# A second lock of a mutex is waited for without end, whatever signals come.
_MODULE = f"""
import ctypes, socket
from pathlib import Path

here, resolve = Path(__file__).parent, socket.getaddrinfo

def getaddrinfo(host, port, *arguments, **named):
    if host == {HOST!r}:
        if (here / "silent").exists():
            (here / "asked").touch()
            mutex = ctypes.create_string_buffer(128)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        host = "127.0.0.1"
    return resolve(host, port, *arguments, **named)

socket.getaddrinfo = getaddrinfo
"""


class NameServer:
    """Answers a command line's commands."""

    def __init__(self, line: CommandLine) -> None:
        self._place = line.directory
        line.module("sitecustomize", _MODULE)

    def dsn(self, proxy: Proxy) -> str:
        """The way through the proxy, by name."""
        return make_conninfo(proxy.dsn, host=HOST, hostaddr="")

    def silence(self) -> None:
        (self._place / "silent").touch()

    def wait_for_question(self) -> None:
        """Wait until somebody waits for an answer."""
        eventually((self._place / "asked").exists, "the name is asked for")
