"""A TCP relay before PostgreSQL that a test orders to misbehave: refuse, fall silent, cut, swallow a reply.

Runs in threads of the test process. The clients' side is loopback TCP; the server's side is whatever the server's
DSN says, a Unix socket too. Bytes are relayed as they come; only ``reject`` speaks the protocol.
"""

import contextlib
import socket
import struct
import threading
from enum import StrEnum

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65536


class Mode(StrEnum):
    PASS = "pass"
    SILENT = "silent"
    """New connections are accepted, and nothing goes either way; what came is delivered when this ends."""
    SWALLOW = "swallow"
    """What clients send arrives; of what the server answers, nothing does."""


class Proxy:
    """A relay to the server of `dsn`; :attr:`dsn` is the way through it.

    :param address: of this host, at which it listens.
    :param port: 0: any.
    """

    def __init__(self, dsn: str, address: str = "127.0.0.1", port: int = 0) -> None:
        self.move(dsn)
        self._change = threading.Condition()
        self._mode = Mode.PASS
        self._rejection: bytes | None = None
        self._cut_after_reply = False
        self._next = False
        self._only = ""
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._address = address
        self.port = port
        self.accepted = 0
        """Connections that were accepted so far."""
        self.pass_on()
        # A session's encryption would be the client's and the server's secret; the relay could not tell replies.
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        self.dsn = make_conninfo(dsn, host=address, hostaddr=address, port=self.port, **plain)

    def move(self, dsn: str) -> None:
        """Relay new connections to the server of `dsn`, as when a name moves; open ones stay where they are."""
        parameters = conninfo_to_dict(dsn)
        self._host = str(parameters.get("host") or "127.0.0.1")
        self._server_port = int(parameters.get("port") or 5432)

    def pass_on(self) -> None:
        """Relay everything again; the beginning, and the end of each fault."""
        with self._change:
            self._mode, self._rejection = Mode.PASS, None
            for link in self._links:
                link.held, link.held_from = False, b""
            self._change.notify_all()
            if self._listener is None:
                listener = socket.create_server((self._address, self.port), backlog=100)
                self.port = listener.getsockname()[1]
                self._listener = listener
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections, and cut those that are open: the server is down."""
        with self._change:
            listener, self._listener = self._listener, None
        if listener is not None:
            # Shutdown wakes the thread that sits in accept(); close alone would leave it there, and the port open.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.cut()

    def silence(self) -> None:
        """Accept and never answer, and relay nothing on open connections: the network drops packets."""
        self._set(Mode.SILENT)

    def hold(self, only: str = "", saying: bytes = b"") -> None:
        """Hold back what goes over open connections, while new ones work; it is delivered when this ends.

        Delivered even if the client has given up meanwhile, as a packet is that was sent again and again.

        :param only: connections whose ``application_name`` begins so.
        :param saying: each of them from the request on that has this in it; what goes before it goes on.
        """
        with self._change:
            for link in self._links:
                if link.name.startswith(only):
                    link.held, link.held_from = not saying, saying

    def swallow(self, *, then_cut: bool = True, under_way: bool = False, only: str = "") -> None:
        """Let the next request arrive, and its reply not.

        :param then_cut: cut the connection when the reply has come, and relay the others again; False: stay deaf.
        :param under_way: not the next request, but one that has been sent and is not answered.
        :param only: on a connection whose ``application_name`` begins so.
        """
        with self._change:
            self._cut_after_reply = then_cut
            self._only = only
            self._next = not under_way
            for link in self._links:
                link.asked = under_way and link.waiting and link.name.startswith(only)
        self._set(Mode.SWALLOW)

    def reject(self, sqlstate: str, message: str) -> None:
        """Answer new connections with an error, as a server does that starts up (57P03) or is full (53300)."""
        fields = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": message}
        body = b"".join(key.encode() + text.encode() + b"\0" for key, text in fields.items()) + b"\0"
        with self._change:
            self._rejection = b"E" + struct.pack("!i", len(body) + 4) + body

    def cut(self) -> int:
        """Reset every open connection, and say how many."""
        with self._change:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    def close(self) -> None:
        self.refuse()
        self._set(Mode.PASS)

    def _set(self, mode: Mode) -> None:
        with self._change:
            self._mode = mode
            self._change.notify_all()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._rejection is not None:
                self._refuse_politely(client, self._rejection)
                continue
            try:
                server = self._connect()
            except OSError:
                _reset(client)
                continue
            link = _Link(self, client, server)
            with self._change:
                if self._listener is not listener:
                    link.cut()
                    return
                self._links.add(link)
            link.start()

    def _refuse_politely(self, client: socket.socket, rejection: bytes) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(5)
            client.recv(CHUNK)
            client.sendall(rejection)

    def _connect(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(f"{self._host}/.s.PGSQL.{self._server_port}")
            except OSError:
                server.close()
                raise
            return server
        return socket.create_connection((self._host, self._server_port), timeout=10)

    def forget(self, link: "_Link") -> None:
        with self._change:
            self._links.discard(link)

    def may_pass(self, link: "_Link", data: bytes, *, reply: bool) -> bool:
        """Wait while the relay is silent; then: whether the bytes in hand go on."""
        with self._change:
            if not reply and link.held_from and link.held_from in data:
                link.held = True
            self._change.wait_for(lambda: link.closed or not (link.held or self._mode is Mode.SILENT))
            if link.closed:
                return False
            link.waiting = not reply
            if self._mode is Mode.SWALLOW and self._next and not reply and link.name.startswith(self._only):
                link.asked = True
            if self._mode is not Mode.SWALLOW or not reply or not link.asked:
                return True
            if self._cut_after_reply:
                self._mode = Mode.PASS
                self._change.notify_all()
        if self._cut_after_reply:
            link.cut()
        return False


class _Link:
    """One client's connection and the server's that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.closed = False
        self.asked = False
        """The client has sent the request whose reply is to be swallowed."""
        self.waiting = False
        """The last to speak was the client."""
        self.held = False
        """Nothing passes; see :meth:`Proxy.hold`."""
        self.held_from = b""
        """What a request says from which on nothing passes."""
        self.name = ""
        """What the client calls itself."""
        self._proxy = proxy
        self._client = client
        self._server = server

    def start(self) -> None:
        for source, target, reply in ((self._client, self._server, False), (self._server, self._client, True)):
            threading.Thread(target=self._pump, args=(source, target, reply), daemon=True).start()

    def cut(self) -> None:
        self.closed = True
        for end in (self._client, self._server):
            _reset(end)
        self._proxy.forget(self)
        with self._proxy._change:
            self._proxy._change.notify_all()

    def _pump(self, source: socket.socket, target: socket.socket, reply: bool) -> None:
        try:
            while data := source.recv(CHUNK):
                if not reply and not self.name:
                    _, _, rest = data.partition(b"application_name\0")
                    self.name = rest.partition(b"\0")[0].decode(errors="replace")
                if self._proxy.may_pass(self, data, reply=reply):
                    target.sendall(data)
        except OSError:
            pass
        finally:
            if not self.closed:
                self.cut()


def _reset(end: socket.socket) -> None:
    """Close with a reset, as a router or a dead host does, and wake the thread that reads from it."""
    with contextlib.suppress(OSError):
        if end.family == socket.AF_INET:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
