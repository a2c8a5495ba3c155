"""The HTTP server of ``/metrics`` and ``/healthz``: as little of HTTP as a scraper and a load balancer need.

One request a connection, a bound on everything a client can make it keep: header bytes, seconds, connections. It
serves whoever can reach the address, without a password, so the default address is local. Runs in the parent's
loop; what a scrape gets is built elsewhere.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from pgsched.errors import ResourceError, UsageError
from pgsched.events import emit
from pgsched.ops.exposition import Rendered

HEADER_LIMIT = 8 * 1024
"""Bytes of request line and headers together."""
REQUEST_SECONDS = 5.0
"""From the connection to the last byte of the answer, the time for building it not counted."""
MOST_CONNECTIONS = 32
"""Beyond these a client is told that the service is busy; beyond twice as many it is hung up on."""
LINGER_SECONDS = 1.0
LINGER_BYTES = 64 * 1024
OPTION = "--metrics-address"

_REQUEST = re.compile(r"(?P<method>[A-Z]+) (?P<target>/[\x21-\x7e]*) HTTP/1\.[01]", re.ASCII)
_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t\x20-\x7e\x80-\xff]*)")
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

Health = Callable[[], tuple[bool, Mapping[str, object]]]
"""Says whether all is well, and the details; called in the loop, must return at once."""
Scrape = Callable[[str], Awaitable[Rendered]]
"""Builds the answer to a scrape with this ``Accept`` header."""


class _Refused(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


METHODS = ("GET", "HEAD")


class _Request(NamedTuple):
    method: str
    path: str
    accept: str


class MetricsServer:
    """Serves from :meth:`start` until :meth:`close`.

    :param host: a name or an address; empty for all interfaces.
    :param port: 0 for any that is free.
    """

    def __init__(self, host: str, port: int, *, scrape: Scrape, health: Health) -> None:
        self._host = host
        self._port = port
        self._scrape = scrape
        self._health = health
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> tuple[str, int]:
        """Bind and listen; return the real address.

        :raises UsageError: the address is none, or not for this user.
        :raises ResourceError: it cannot be had now.
        """
        try:
            listening = await self._bind()
            self._server = await asyncio.start_server(self._connected, sock=listening, limit=HEADER_LIMIT)
        except (OSError, UnicodeError) as error:
            line = f"{OPTION} {_shown(self._host, self._port)}: {_reason(error)}"
            if isinstance(error, (UnicodeError, PermissionError)):
                raise UsageError(line) from None
            raise ResourceError(line) from None
        host, port = listening.getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        """Stop listening and end the connections that are open."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._server = None

    async def _bind(self) -> socket.socket:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # One address only: with port 0 each would get a port of its own.
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=MOST_CONNECTIONS)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError):
            # The client went away, or does not read; either way there is nobody to tell.
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) > 2 * MOST_CONNECTIONS:
            # A flood must not hold the descriptors that the pool needs.
            writer.transport.abort()
            return
        # What is not with the kernel yet would keep its descriptor for as long as the client likes, counted by nobody.
        writer.transport.set_write_buffer_limits(high=0)
        silent = False
        try:
            if len(self._connections) > MOST_CONNECTIONS:
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE)
            request = await _read_request(reader)
            silent = request.method == "HEAD"
            status, content_type, body = await self._answer(request)
        except _Refused as refused:
            status, content_type, body = refused.status, _TEXT, f"{refused.status.phrase}\n".encode()
        async with asyncio.timeout(REQUEST_SECONDS):
            writer.write(_head(status, content_type, len(body)) + (b"" if silent else body))
            await writer.drain()
            writer.write_eof()
        await _linger(reader)

    async def _answer(self, request: _Request) -> tuple[HTTPStatus, str, bytes]:
        if request.path not in ("/metrics", "/healthz"):
            raise _Refused(HTTPStatus.NOT_FOUND)
        if request.method not in METHODS:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED)
        if request.path == "/healthz":
            return self._healthz()
        try:
            content_type, body = await self._scrape(request.accept)
        except Exception as error:
            emit("scrape_failed", logging.ERROR, error=error)
            raise _Refused(HTTPStatus.INTERNAL_SERVER_ERROR) from None
        return HTTPStatus.OK, content_type, body

    def _healthz(self) -> tuple[HTTPStatus, str, bytes]:
        try:
            healthy, details = self._health()
            line = json.dumps(details, default=str)
        except Exception as error:
            healthy, line = False, json.dumps({"status": "unknown", "error": type(error).__name__})
        status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
        return status, _JSON, line.encode() + b"\n"


async def _read_request(reader: asyncio.StreamReader) -> _Request:
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise _Refused(HTTPStatus.REQUEST_TIMEOUT) from None
    except asyncio.LimitOverrunError:
        raise _Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except asyncio.IncompleteReadError:
        raise _Refused(HTTPStatus.BAD_REQUEST) from None
    line, *headers = head[:-4].decode("latin-1").split("\r\n")
    request = _REQUEST.fullmatch(line)
    fields = [_HEADER.fullmatch(header) for header in headers]
    if request is None or None in fields:
        raise _Refused(HTTPStatus.BAD_REQUEST)
    accept = ",".join(field["value"] for field in fields if field is not None and field["name"].lower() == "accept")
    return _Request(request["method"], request["target"].partition("?")[0], accept)


def _head(status: HTTPStatus, content_type: str, length: int) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append(f"Allow: {', '.join(METHODS)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _linger(reader: asyncio.StreamReader) -> None:
    """Take in what the client still sends: closing before that makes the kernel throw our answer away."""
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while taken < LINGER_BYTES and (chunk := await reader.read(HEADER_LIMIT)):
                taken += len(chunk)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError | UnicodeError) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "this address is in use; choose another port, or 0 for any that is free"
        case errno.EACCES | errno.EPERM:
            return "this port may not be opened by this user; choose one above 1023"
        case errno.EADDRNOTAVAIL:
            return "this host has no such address"
        case _ if isinstance(error, socket.gaierror):
            return "this name has no address"
        case code if isinstance(code, int):
            return os.strerror(code)
    return "this is not a host name"
