"""The HTTP server, over raw sockets: what it answers, what it refuses, and what a client cannot make it do."""

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from pgsched.config import METRICS_ADDRESS, Settings
from pgsched.errors import ExitCode, PgschedError, ResourceError, UsageError
from pgsched.ops import http
from pgsched.ops.exposition import Rendered
from pgsched.ops.http import MetricsServer
from tests.support import eventually_async

Scrape = Callable[[str], Awaitable[Rendered]]


async def scrape(accept: str) -> Rendered:
    return Rendered(f"text/plain; for={accept}", b"up 1\n")


def well() -> tuple[bool, Mapping[str, object]]:
    return True, {"status": "ok", "slots": 2}


@asynccontextmanager
async def serving(
    scrape: Scrape = scrape, health: http.Health = well, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, int]]:
    server = MetricsServer(host, 0, scrape=scrape, health=health)
    address = await server.start()
    try:
        yield address
    finally:
        await server.close()


async def ask(address: tuple[str, int], request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read to the end: status, headers, body."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *headers = head.decode("latin-1").split("\r\n")
    assert line.startswith("HTTP/1.1 ")
    return int(line.split(" ")[1]), dict(header.split(": ", 1) for header in headers), body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode("latin-1")


async def test_metrics() -> None:
    async with serving() as address:
        status, headers, body = await ask(address, get("/metrics", "ACCEPT:  a/b;q=1", "Accept: c"))
    assert (status, body) == (200, b"up 1\n")
    assert headers == {
        "Content-Type": "text/plain; for=a/b;q=1,c",
        "Content-Length": "5",
        "Cache-Control": "no-store",
        "Connection": "close",
    }


async def test_a_query_is_allowed() -> None:
    async with serving() as address:
        assert (await ask(address, get("/metrics?name[]=up")))[0] == 200


@pytest.mark.parametrize(("healthy", "status"), [(True, 200), (False, 503)])
async def test_healthz_is_one_line_of_json(healthy: bool, status: int) -> None:
    async with serving(health=lambda: (healthy, {"lease": "lost\nfor good", "at": object})) as address:
        found, headers, body = await ask(address, get("/healthz"))
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert body.count(b"\n") == 1
    assert json.loads(body)["lease"] == "lost\nfor good"


async def test_a_health_check_that_fails_is_not_healthy() -> None:
    def broken() -> tuple[bool, Mapping[str, object]]:
        raise KeyError("secret")

    async with serving(health=broken) as address:
        status, _, body = await ask(address, get("/healthz"))
    assert status == 503
    assert b"secret" not in body


async def test_a_scrape_that_fails_is_an_error_and_the_next_one_is_served() -> None:
    failing = [True]

    async def sometimes(accept: str) -> Rendered:
        if failing.pop():
            raise OSError("disk on fire")
        return await scrape(accept)

    failing.append(True)
    failing.insert(0, False)
    async with serving(scrape=sometimes) as address:
        answers = [await ask(address, get("/metrics")) for _ in range(3)]
    assert [status for status, _, _ in answers] == [500, 500, 200]
    assert b"fire" not in answers[0][2]


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/metrics/../healthz", "//healthz"])
async def test_other_paths_are_not_found(path: str) -> None:
    async with serving() as address:
        assert (await ask(address, get(path)))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
async def test_other_methods_are_not_allowed(method: str) -> None:
    async with serving() as address:
        status, headers, _ = await ask(address, f"{method} /metrics HTTP/1.1\r\n\r\n".encode())
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/other"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving() as address:
        *head, nothing = await ask(address, get(path).replace(b"GET", b"HEAD", 1))
        *whole, body = await ask(address, get(path))
    assert nothing == b""
    assert body
    assert head == whole


async def test_a_refused_body_does_not_cost_the_answer() -> None:
    """A server that closes with unread bytes resets the connection, and the client never sees why."""
    async with serving() as address:
        body = b"x" * 50_000
        request = b"POST /metrics HTTP/1.1\r\nContent-Length: 50000\r\n\r\n" + body
        assert (await ask(address, request))[0] == 405


async def test_who_sends_on_after_the_answer_is_not_cut_off() -> None:
    """He may not read before he has sent all that he said he would."""
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /metrics HTTP/1.1\r\nContent-Length: 10000\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 405 ")
        for _ in range(10):
            writer.write(b"x" * 1000)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"GET http://x/metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/2\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: a\nX-Injected: 1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: a\rb\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: a\x00\r\n\r\n",
        b"GET /met\x00rics HTTP/1.1\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
    ],
)
async def test_malformed_requests_are_bad(request_: bytes) -> None:
    async with serving() as address:
        assert (await ask(address, request_))[0] == 400


async def test_half_a_request_is_bad() -> None:
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_headers_are_bounded() -> None:
    async with serving() as address:
        assert (await ask(address, get("/metrics", "X: " + "x" * 7000)))[0] == 200
        assert (await ask(address, get("/metrics", "X: " + "x" * 9000)))[0] == 431
        assert (await ask(address, b"x" * 20_000))[0] == 431


@pytest.mark.parametrize("line", [b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", b"\x00" * 10_000, b"G" * 1_000_000])
async def test_a_request_line_of_ten_thousand_bytes_is_too_much(line: bytes) -> None:
    async with serving() as address:
        assert (await ask(address, line))[0] == 431
        assert (await ask(address, get("/healthz")))[0] == 200


async def test_of_pipelined_requests_the_first_is_answered() -> None:
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(get("/healthz") + get("/metrics") * 50)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_a_client_that_has_closed_its_half_is_answered() -> None:
    async with serving() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(get("/metrics"))
        writer.write_eof()
        assert (await reader.read()).endswith(b"\r\n\r\nup 1\n")
        writer.close()


async def test_clients_that_trickle_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, the whole never: the time runs from the connection on."""
    monkeypatch.setattr(http, "REQUEST_SECONDS", 3.0)

    async def trickle(address: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        answer = asyncio.ensure_future(reader.read())
        for byte in get("/metrics", "X: " + "x" * 5000):
            if answer.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.wait({answer}, timeout=0.01)
        writer.close()
        return await answer

    async with serving() as address:
        slow = [asyncio.ensure_future(trickle(address)) for _ in range(http.MOST_CONNECTIONS - 1)]
        await eventually_async(lambda: len(_open_connections()) == len(slow))
        assert (await ask(address, get("/metrics")))[0] == 200
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in await asyncio.gather(*slow))
        await eventually_async(lambda: not _open_connections())


def test_the_default_address_is_local() -> None:
    assert METRICS_ADDRESS.host == "127.0.0.1"
    assert Settings.parse("tasks:app", {}).metrics_address == METRICS_ADDRESS


async def test_a_client_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    async with serving() as address:
        started = time.monotonic()
        assert (await ask(address, b"GET /metr"))[0] == 408
        assert 0.2 <= time.monotonic() - started < 5


async def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)

    async def huge(accept: str) -> Rendered:
        return Rendered("text/plain", b"x" * 20_000_000)

    async with serving(scrape=huge) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(get("/metrics"))
        transport = writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        await eventually_async(lambda: not _open_connections())
        transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await reader.read()) < 20_000_000
        writer.close()


async def test_what_a_client_does_not_read_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than asyncio takes in before it makes anybody wait, and more than the kernel does."""
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    asked = 0

    async def middling(accept: str) -> Rendered:
        nonlocal asked
        asked += 1
        return Rendered("text/plain", b"x" * 50_000)

    bind = MetricsServer._bind

    async def bind_small(server: MetricsServer) -> socket.socket:
        listening = await bind(server)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return listening

    monkeypatch.setattr(MetricsServer, "_bind", bind_small)
    async with serving(scrape=middling) as address:
        clients = [socket.socket() for _ in range(5)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            client.connect(address)
            client.sendall(get("/metrics"))
        open_before = _descriptors()
        await eventually_async(lambda: asked == len(clients))
        await eventually_async(lambda: _descriptors() == open_before and not _open_connections())
        for client in clients:
            client.close()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _open_connections() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if "_connected" in repr(task)]


async def test_connections_are_bounded_and_freed() -> None:
    async with serving() as address:
        idle = [await asyncio.open_connection(*address) for _ in range(http.MOST_CONNECTIONS)]
        assert (await ask(address, get("/healthz")))[0] == 503
        for _, writer in idle:
            writer.close()
        await eventually_async(lambda: not _open_connections())
        assert (await ask(address, get("/healthz")))[0] == 200


def _hung_up_on(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    # Those that were refused in words have bytes to read.
    ended = [reader for reader, _ in connections if reader.at_eof() or reader.exception() is not None]
    return len(ended)


async def test_a_flood_is_hung_up_on() -> None:
    async with serving() as address:
        flood = [await asyncio.open_connection(*address) for _ in range(3 * http.MOST_CONNECTIONS)]
        await eventually_async(lambda: _hung_up_on(flood) >= http.MOST_CONNECTIONS)
        for _, writer in flood:
            writer.close()


async def test_a_client_that_never_stops_sending_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as address:
        for seconds, taken in ((0.1, http.LINGER_BYTES), (60.0, 100)):
            monkeypatch.setattr(http, "LINGER_SECONDS", seconds)
            monkeypatch.setattr(http, "LINGER_BYTES", taken)
            _, writer = await asyncio.open_connection(*address)
            writer.write(get("/metrics"))
            writer.write(b"x" * 101)
            # It neither goes away nor says that this was all.
            await eventually_async(lambda: not _open_connections())
            writer.close()


async def test_a_client_that_hangs_up_disturbs_nobody() -> None:
    async with serving() as address:
        for request in (b"", b"GET /me", get("/metrics")):
            connection = socket.create_connection(address)
            connection.sendall(request)
            # Zero seconds of linger: the close is a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()
        assert (await ask(address, get("/metrics")))[0] == 200


async def test_closing_ends_open_connections_and_frees_the_port() -> None:
    server = MetricsServer("127.0.0.1", 0, scrape=scrape, health=well)
    host, port = await server.start()
    reader, writer = await asyncio.open_connection(host, port)
    assert (await ask((host, port), get("/healthz")))[0] == 200
    await server.close()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    again = MetricsServer(host, port, scrape=scrape, health=well)
    assert await again.start() == (host, port)
    await again.close()


async def test_f80_an_address_in_use_is_one_clear_line() -> None:
    async with serving() as (host, port):
        second = MetricsServer(host, port, scrape=scrape, health=well)
        with pytest.raises(ResourceError) as caught:
            await second.start()
    assert str(caught.value) == (
        f"--metrics-address 127.0.0.1:{port}: this address is in use; choose another port, or 0 for any that is free"
    )
    assert caught.value.exit_code is ExitCode.RESOURCE


@pytest.mark.parametrize(
    ("host", "reason", "kind"),
    [
        ("203.0.113.7", "this host has no such address", ResourceError),
        ("no-such-host.invalid", "this name has no address", ResourceError),
        ("a..b", "this is not a host name", UsageError),
        ("x" * 300, "this is not a host name", UsageError),
    ],
)
async def test_an_address_that_cannot_be_had_is_one_clear_line(
    host: str, reason: str, kind: type[PgschedError]
) -> None:
    with pytest.raises(kind, match=f"^--metrics-address {host}:0: {reason}$"):
        await MetricsServer(host, 0, scrape=scrape, health=well).start()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, UsageError), (errno.EPERM, UsageError), (errno.EMFILE, ResourceError)]
)
async def test_only_what_may_pass_by_itself_is_worth_another_start(
    number: int, kind: type[PgschedError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(kind, match=r"^--metrics-address 127\.0\.0\.1:0: "):
        await MetricsServer("127.0.0.1", 0, scrape=scrape, health=well).start()


async def test_ipv6_and_all_interfaces() -> None:
    if socket.has_ipv6:
        async with serving(host="::1") as address:
            assert (await ask(address, get("/healthz")))[0] == 200
    async with serving(host="") as (_, port):
        assert (await ask(("127.0.0.1", port), get("/healthz")))[0] == 200
