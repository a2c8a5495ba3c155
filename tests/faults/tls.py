"""Encryption before a server that has none: takes a client's TLS, and passes on what is in it.

Runs in threads of the test process. The certificate, made for these tests, says "localhost" and has signed itself.
"""

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.proxy import CHUNK, Proxy

CERTIFICATE = Path(__file__).with_name("localhost.pem")
ANOTHER = Path(__file__).with_name("another.pem")
_SSL_REQUEST = bytes.fromhex("00000008 04d2162f")


class TlsRelay:
    """A port for TLS alone before a :class:`Proxy`."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._listener.getsockname()[1]
        self.encrypted = 0
        """Connections that came to an agreement."""
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def dsn(self, **parameters: str) -> str:
        """The way through it."""
        names = {"host": "localhost", "hostaddr": "127.0.0.1", "port": self.port, **parameters}
        return make_conninfo(self._proxy.dsn, **names)

    def close(self) -> None:
        self._proxy.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(5)
            if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                return
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as secret:
                self.encrypted += 1
                secret.settimeout(None)
                with socket.create_connection(("127.0.0.1", self._proxy.port)) as plain:
                    _pump(secret, plain)


def _pump(secret: ssl.SSLSocket, plain: socket.socket) -> None:
    while True:
        ready = [secret] if secret.pending() else select.select([secret, plain], [], [])[0]
        for source in ready:
            data = source.recv(CHUNK)
            if not data:
                return
            (plain if source is secret else secret).sendall(data)
