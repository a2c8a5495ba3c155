"""The embedded server: real servers in directories of their own, real kills, other processes as other users."""

import ctypes
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from pgsched import App
from pgsched import app as app_module
from pgsched.dsn import LIBPQ_VARIABLES, VARIABLE
from pgsched.errors import DatabaseError, UsageError
from pgsched.ops import embedded, wheel
from pgsched.ops.embedded import Handle
from pgsched.ops.locks import Locks
from pgsched.store.schema import migrate
from tests.support import ROOT, eventually, gone, process

ORDINARY = 65534
UNKNOWN = 64999
"""A user of whom the system knows no name."""

USE = """
import sys
from pathlib import Path
from pgsched.ops import embedded
handle = embedded.start(Path(sys.argv[1]))
print("started" if handle.started else "joined", flush=True)
sys.stdin.readline()
handle.close()
"""

FORK = """
import os, sys
from pathlib import Path
from pgsched.ops import embedded
handle = embedded.start(Path(sys.argv[1]))
if os.fork():
    print("forked", flush=True)
sys.stdin.readline()
os._exit(0)
"""


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for the server: short enough for a socket, and open to the user that root's server runs as."""
    parent = Path(tempfile.mkdtemp(prefix="pgsched-"))
    parent.chmod(0o711)
    yield parent / "server"
    shutil.rmtree(parent)


@pytest.fixture
def new_place() -> Iterator[Path]:
    """Where the server's directory will be."""
    with directory() as place:
        yield place


@pytest.fixture(scope="module")
def stopped_place() -> Iterator[Path]:
    with directory() as place:
        embedded.start(place).close()
        yield place


@pytest.fixture
def place(new_place: Path, stopped_place: Path) -> Path:
    """The directory of a server that was started and stopped before: a copy, which takes a tenth of making one."""
    subprocess.run(["cp", "-a", str(stopped_place), str(new_place)], check=True)
    return new_place


class User:
    """Another process that uses the server until it is told to leave."""

    def __init__(self, place: Path, program: str = USE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(place)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate("\n", timeout=30)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def as_ordinary_user(arguments: list[str], **environment: str) -> Done:
    """Run a program as a user who is neither root nor the one whom root's server runs as."""
    try:
        done = subprocess.run(
            arguments,
            cwd="/",
            user=ORDINARY,
            group=ORDINARY,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except PermissionError as error:
        return Done(126, "", str(error))
    return Done(done.returncode, done.stdout, done.stderr)


def copy_wheel(target: Path) -> None:
    spec = importlib.util.find_spec(wheel.WHEEL)
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    for name in (wheel.WHEEL, f"{wheel.WHEEL}.libs"):
        shutil.copytree(package.parent / name, target / name, symlinks=True)


def ask(handle: Handle, query: str) -> object:
    with psycopg.connect(handle.dsn, connect_timeout=10) as connection:
        cursor = connection.execute(query.encode())
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def pid_of(handle: Handle) -> int:
    return int((handle.directory / "data/postmaster.pid").read_text().split()[0])


def stopped(handle: Handle) -> bool:
    return not (handle.directory / "data/postmaster.pid").exists()


def test_a_new_server_is_durable_private_and_without_tcp(new_place: Path) -> None:
    with embedded.start(new_place) as handle:
        assert handle.started
        assert str(ask(handle, "SHOW server_version")).startswith("18.")
        assert ask(handle, "SHOW fsync") == ask(handle, "SHOW synchronous_commit") == "on"
        assert ask(handle, "SHOW full_page_writes") == "on"
        assert ask(handle, "SHOW server_encoding") == "UTF8"
        assert ask(handle, "SELECT 'ß' ~ '^\\w$' AND upper('é') = 'É'") is True
        assert ask(handle, "SHOW listen_addresses") == ""
        assert (new_place / "run").stat().st_mode & 0o077 == 0
        assert (new_place / "data").stat().st_mode & 0o077 == 0
    assert stopped(handle)


def test_data_outlives_the_server(place: Path) -> None:
    with embedded.start(place) as handle:
        ask(handle, "CREATE TABLE kept AS SELECT 7 AS n")
    with embedded.start(place) as handle:
        assert handle.started
        assert ask(handle, "SELECT n FROM kept") == 7


def test_a_user_can_change_the_defaults_in_the_configuration_file(place: Path) -> None:
    with (place / "data/postgresql.conf").open("a") as file:
        file.write("autovacuum_naptime = 17s\n")
    with embedded.start(place) as handle:
        assert ask(handle, "SHOW autovacuum_naptime") == "17s"


def test_the_last_of_several_handles_stops_the_server(place: Path) -> None:
    first = embedded.start(place)
    second = embedded.start(place)
    assert (first.started, second.started) == (True, False)
    assert first.dsn == second.dsn
    first.close()
    first.close()
    assert ask(second, "SELECT 1") == 1
    second.close()
    assert stopped(second)


def test_processes_share_the_server_and_the_last_one_stops_it(place: Path) -> None:
    other = User(place)
    assert other.said() == "started"
    handle = embedded.start(place)
    assert not handle.started
    other.leave()
    assert ask(handle, "SELECT 1") == 1
    handle.close()
    assert stopped(handle)


def test_a_killed_user_leaves_the_server_up_and_the_next_one_takes_it_over(place: Path) -> None:
    other = User(place)
    assert other.said() == "started"
    other.kill()
    with embedded.start(place) as handle:
        assert not handle.started
        assert ask(handle, "SELECT 1") == 1
    assert stopped(handle)


def test_of_processes_that_race_for_a_new_directory_one_starts_the_server(new_place: Path) -> None:
    users = [User(new_place) for _ in range(4)]
    assert sorted(user.said() for user in users) == ["joined", "joined", "joined", "started"]
    pids = {int((new_place / "data/postmaster.pid").read_text().split()[0])}
    for user in users:
        user.leave()
    assert not (new_place / "data/postmaster.pid").exists()
    assert all(gone(pid) for pid in pids)


def test_a_program_that_was_started_meanwhile_does_not_keep_the_server(place: Path) -> None:
    handle = embedded.start(place)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as sleeper:
        handle.close()
        assert stopped(handle)
        sleeper.kill()


def test_a_forked_process_does_not_close_its_parents_handle(place: Path) -> None:
    with embedded.start(place) as handle:
        pid = os.fork()
        if pid == 0:
            handle.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert ask(handle, "SELECT 1") == 1


@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["by Python", "by a library"])
def test_a_forked_process_does_not_keep_the_locks(
    place: Path, fork: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = embedded.start(place)
    waited_for, end = os.pipe()
    child = fork()
    if child == 0:
        os.close(end)
        os.read(waited_for, 1)
        os._exit(0)
    os.close(waited_for)
    try:
        handle.close()
        assert stopped(handle)
        with monkeypatch.context() as patched:
            enter = Locks.enter
            patched.setattr(Locks, "enter", lambda locks, _: enter(locks, 0.0))
            again = embedded.start(place)
        assert again.started
        again.close()
        assert stopped(again)
    finally:
        os.close(end)
        os.waitpid(child, 0)


def test_the_forked_child_of_a_killed_user_does_not_keep_the_server(place: Path) -> None:
    other = User(place, FORK)
    assert other.said() == "forked"
    other.process.kill()
    other.process.wait(30)
    with embedded.start(place) as handle:
        assert not handle.started
    assert stopped(handle)
    other.process.communicate("\n", timeout=30)


def test_the_server_does_not_hear_a_terminals_interrupt(place: Path) -> None:
    with embedded.start(place) as handle:
        server = process(pid_of(handle))
        assert server is not None
        assert server.session not in (os.getsid(0), 0)


def test_a_killed_server_is_started_again_beside_its_users(place: Path) -> None:
    first = embedded.start(place)
    ask(first, "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(pid_of(first), signal.SIGKILL)
    second = embedded.start(place)
    assert second.started
    assert ask(first, "SELECT n FROM kept") == 7
    second.close()
    assert ask(first, "SELECT 1") == 1
    first.close()
    assert stopped(first)


def test_a_recovery_that_outlasts_its_starter_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A restore from an archive begins in the same way as the recovery from a crash, and lasts as long as its command.
    over = place / "over"
    with (place / "data/postgresql.conf").open("a") as file:
        file.write(f"restore_command = 'while ! test -e {over}; do sleep 0.1; done; false'\n")
    (place / "data/recovery.signal").touch()
    with monkeypatch.context() as patched:
        patched.setattr(embedded, "START_TIMEOUT", 1.0)
        for _ in range(2):
            with pytest.raises(DatabaseError, match="start"):
                embedded.start(place)
    eventually((place / "data/postmaster.pid").exists)
    server = int((place / "data/postmaster.pid").read_text().split()[0])
    assert process(server) is not None
    over.touch()
    with embedded.start(place) as handle:
        assert not handle.started
        assert pid_of(handle) == server
        assert ask(handle, "SELECT 1") == 1
    assert stopped(handle)


def test_an_app_that_connects_again_and_again_uses_the_server_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSCHED_DATA_DIR", str(place))
    for variable in (VARIABLE, *LIBPQ_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    app = App()

    @app.task
    def noop() -> None: ...

    with embedded.start(place) as handle:
        migrate(handle.dsn)
        noop.enqueue()
        pid = pid_of(handle)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        app.close()
        noop.enqueue()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert pid_of(handle) == pid, "it goes on from one connection to the next"
    assert ask(handle, "SELECT count(*) FROM scheduled_tasks") == 4
    app.close()
    app_module._joined.close()
    assert stopped(handle)


def test_a_server_that_has_lost_its_socket_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LEFTOVER_TIMEOUT", 0.0)
    with embedded.start(place) as handle:
        address = place / "run/.s.PGSQL.5432"
        address.rename(place / "run/hidden")
        pid = pid_of(handle)
        with pytest.raises(DatabaseError, match=rf"; process {pid} runs there and does not answer: kill {pid}$"):
            embedded.start(place)
        (place / "run/hidden").rename(address)


def test_stale_files_whose_pid_belongs_to_somebody_else_now(place: Path) -> None:
    handle = embedded.start(place)
    pid_file, lock_file = place / "data/postmaster.pid", place / "run/.s.PGSQL.5432.lock"
    left = {path: path.read_text() for path in (pid_file, lock_file)}
    dead = left[pid_file].split()[0]
    os.kill(pid_of(handle), signal.SIGKILL)
    handle.close()
    owner = wheel.owner(place)
    stranger = subprocess.Popen(["sleep", "60"], user=owner.uid if owner else None, cwd="/")
    try:
        eventually(lambda: not pid_file.exists() or gone(int(dead)))
        for path, text in left.items():
            path.write_text(text.replace(dead, str(stranger.pid), 1))
        with embedded.start(place) as handle:
            assert handle.started
            assert ask(handle, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_copy_of_a_directory_in_use_gets_a_server_of_its_own(place: Path) -> None:
    with embedded.start(place) as first:
        other = place.with_name("other")
        subprocess.run(["cp", "-a", str(place), str(other)], check=True)
        with embedded.start(other) as second:
            assert second.started
            assert second.dsn != first.dsn
            assert ask(second, "SHOW data_directory") == str(other / "data")
        assert ask(first, "SHOW data_directory") == str(place / "data")


def test_a_directory_is_the_same_by_another_name(place: Path) -> None:
    link = place.with_name("link")
    link.symlink_to(place)
    with embedded.start(link) as first, embedded.start(place) as second:
        assert (first.started, second.started) == (True, False)
        assert first.dsn == second.dsn


def test_an_unfinished_data_directory_is_made_anew(new_place: Path) -> None:
    (new_place / "data.new/base").mkdir(parents=True)
    with embedded.start(new_place) as handle:
        assert ask(handle, "SELECT 1") == 1


def test_data_of_another_major_version_is_refused(place: Path) -> None:
    (place / "data/PG_VERSION").write_text("16\n")
    with pytest.raises(UsageError, match=r"made by PostgreSQL 16, .* is PostgreSQL 18: .*PGSCHED_DATA_DIR"):
        embedded.start(place)


def test_a_setting_that_the_server_refuses_is_reported_in_its_own_words(place: Path) -> None:
    with pytest.raises(DatabaseError, match=r"did not start: .*shared_buffers") as caught:
        embedded.start(place, settings={"shared_buffers": "none"})
    assert "\n" not in str(caught.value)


def test_a_directory_in_use_on_another_host_is_refused(place: Path) -> None:
    other = User(place)
    other.said()
    # As seen from a second host: the lock is held, the boot is not ours, and no server answers on this machine.
    server = int((place / "data/postmaster.pid").read_text().split()[0])
    os.kill(server, signal.SIGKILL)
    eventually(lambda: gone(server))
    (place / "boot").write_text("11111111-2222-3333-4444-555555555555\n")
    with pytest.raises(UsageError, match="in use on another host"):
        embedded.start(place)
    other.kill()
    embedded.start(place).close()


@pytest.mark.parametrize("name", ["x" * 120, "with space, comma and 'quotes'"])
def test_a_path_that_no_socket_can_have_gets_a_short_directory(
    new_place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with embedded.start(new_place / name) as handle:
        directory = Path(str(psycopg.conninfo.conninfo_to_dict(handle.dsn)["host"]))
        assert directory.parent == Path("/tmp")
        assert directory.name.startswith("pgsched-")
        assert directory.stat().st_mode & 0o077 == 0
        assert ask(handle, "SELECT 1") == 1
        with embedded.start(new_place / name) as second:
            assert second.dsn == handle.dsn
    assert not directory.exists()


def test_the_wheel_is_missing(new_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "WHEEL", "no_such_wheel")
    with pytest.raises(UsageError, match=r"pip install 'pgsched\[embedded\]', or give --dsn or PGSCHED_DSN"):
        embedded.start(new_place)


def test_a_directory_that_others_may_write_to_is_refused(new_place: Path) -> None:
    new_place.mkdir()
    new_place.chmod(0o777)
    with pytest.raises(UsageError, match="only he may write there"):
        embedded.start(new_place)


def test_a_directory_that_cannot_be_made_is_named(new_place: Path) -> None:
    new_place.write_text("a file")
    with pytest.raises(UsageError, match=rf"{re.escape(str(new_place))}/below cannot be used .*PGSCHED_DATA_DIR"):
        embedded.start(new_place / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestAsRoot:
    def test_the_server_runs_as_another_user_and_keeps_others_out(self, place: Path) -> None:
        with embedded.start(place) as handle:
            server = Path(f"/proc/{pid_of(handle)}").stat().st_uid
            assert server != 0
            found = as_ordinary_user(["ls", str(place / "run")])
            assert "denied" in found.stderr

    def test_data_keep_their_user(self, place: Path) -> None:
        for path in (place / "data", *(place / "data").rglob("*")):
            os.chown(path, UNKNOWN, UNKNOWN, follow_symlinks=False)
        with embedded.start(place) as handle:
            assert Path(f"/proc/{pid_of(handle)}").stat().st_uid == UNKNOWN
            assert ask(handle, "SELECT 1") == 1

    @pytest.mark.parametrize("busy", [False, True])
    def test_a_stranger_on_the_servers_socket_is_not_believed(self, place: Path, busy: bool) -> None:
        handle = embedded.start(place)
        server, address = pid_of(handle), place / "run/.s.PGSQL.5432"
        os.kill(server, signal.SIGKILL)
        eventually(lambda: gone(server))
        address.unlink()
        with socket.socket(socket.AF_UNIX) as stranger, socket.socket(socket.AF_UNIX) as first:
            stranger.bind(str(address))
            # Of a listener that is busy nothing but the file's owner can be known.
            os.chown(address, UNKNOWN if busy else (place / "data").stat().st_uid, -1)
            os.seteuid(UNKNOWN)
            try:
                stranger.listen(0 if busy else 1000)
            finally:
                os.seteuid(0)
            if busy:
                first.connect(str(address))
            with embedded.start(place) as again:
                assert again.started
                assert ask(again, "SELECT 1") == 1
                handle.close()

    def test_programs_are_copied_where_the_servers_user_cannot_reach_them(
        self, new_place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed = new_place.parent / "closed"
        copy_wheel(closed)
        closed.chmod(0o700)
        found = importlib.util.spec_from_file_location(wheel.WHEEL, closed / wheel.WHEEL / "__init__.py")
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
        with embedded.start(new_place) as handle:
            assert Path(f"/proc/{pid_of(handle)}/exe").resolve().is_relative_to(new_place)
            assert ask(handle, "SELECT 1") == 1
        assert closed.stat().st_mode & 0o777 == 0o700
        with embedded.start(new_place) as handle:
            assert ask(handle, "SELECT 1") == 1

    def test_a_directory_that_the_servers_user_cannot_enter_is_refused(self, new_place: Path) -> None:
        new_place.parent.chmod(0o700)
        with pytest.raises(UsageError, match="cannot enter"):
            embedded.start(new_place)
        assert new_place.parent.stat().st_mode & 0o777 == 0o700

    def test_an_ordinary_user_has_a_server_of_his_own(self, new_place: Path) -> None:
        interpreters = (sys.executable, "/usr/bin/python3")
        found = [path for path in interpreters if as_ordinary_user([path, "-c", "import enum; enum.StrEnum"]).code == 0]
        if not found:
            pytest.skip("an ordinary user cannot reach an interpreter of 3.11 or later")
        source = new_place.parent / "source"
        copy_wheel(source)
        shutil.copytree(ROOT / "pgsched", source / "pgsched", ignore=shutil.ignore_patterns("__pycache__"))
        (source / "use.py").write_text(USE.replace("Path(sys.argv[1])", ""))
        new_place.mkdir()
        os.chown(new_place, ORDINARY, ORDINARY)
        program = [found[0], str(source / "use.py")]
        assert as_ordinary_user(program, HOME=str(new_place)) == (0, "started\n", "")
        assert (new_place / ".local/share/pgsched/data").stat().st_uid == ORDINARY
        refused = as_ordinary_user(program, HOME="/proc/none")
        assert refused.code == 1
        assert "/proc/none/.local/share/pgsched cannot be used for the embedded server" in refused.stderr
