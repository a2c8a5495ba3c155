"""A failover between real servers: the old primary turns read-only or falls silent, the standby takes over, the name
moves, and within 30 seconds tasks run again; nothing is lost that was durable.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from pgsched import App, DatabaseError, Task
from tests.command import Command
from tests.faults.conftest import OwnServer
from tests.faults.replicas import Pair
from tests.proxy import Proxy
from tests.support import eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"
LIMIT = 30.0
"""Seconds from a writable server until tasks run again."""


@pytest.fixture
def pair(place_for_servers: Path) -> Iterator[Pair]:
    with closing(Pair(place_for_servers)) as found:
        yield found


@pytest.fixture
def name(pair: Pair) -> Iterator[Proxy]:
    """What clients call the primary; see :meth:`Proxy.move`."""
    with closing(Proxy(pair.old.dsn)) as found:
        yield found


class Client:
    """A program that enqueues all the time, and knows which of its tasks were committed."""

    def __init__(self, dsn: str, note: Path) -> None:
        self.committed: list[int] = []
        self._app = App(dsn)
        self._note = str(note)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._enqueue)

        @self._app.task
        def tick(seconds: float, note: str) -> None: ...

        self._task = tick

    def __enter__(self) -> "Client":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._app.close()

    def _enqueue(self) -> None:
        while not self._ended.wait(0.05):
            try:
                self.committed.append(self._task.enqueue(0.02, self._note))
            except DatabaseError:
                # Whether that one was committed is not known.
                continue


def stops(command: Command) -> None:
    command.signal(signal.SIGTERM)
    assert command.wait(20).code == 0, command
    assert "Traceback" not in command.err


def executed(note: Path) -> "Counter[int]":
    return Counter(map(int, note.read_text().split())) if note.exists() else Counter()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["demoted", "silent"])
def test_f36_tasks_survive_a_failover(
    way: str, pair: Pair, name: Proxy, pgsched_cli: CommandLine, tmp_path: Path
) -> None:
    """F36: the name leads to the old server for a while, which answers or does not."""
    note = tmp_path / "note"
    options = ("--processes", "2", "--lease", "60", "--db-timeout", "2")
    command = pgsched_cli("run", APP, *options, environment={"PGSCHED_DSN": name.dsn})
    with Client(name.dsn, note) as client:
        eventually(lambda: len(executed(note)) > 20, "some have run", timeout=30)
        if way == "demoted":
            pair.demote()
            before = name.accepted
            eventually(lambda: name.accepted > before + 8, "the old server was tried again and again", timeout=30)
            eventually(lambda: not pair.old.server.backends(pair.old.dsn), "no session stays there")
        else:
            name.hold()
        pair.promote()
        known = len(client.committed)
        done = len(executed(note))
        name.move(pair.new.dsn)
        eventually(lambda: len(client.committed) > known + 20, "it enqueues again", timeout=LIMIT)
        eventually(lambda: len(executed(note)) > done + 20, "tasks run again", timeout=LIMIT)
    rows = Rows(pair.new.server, pair.new.dsn)
    rows.all_ended(timeout=LIMIT)
    ids = set(client.committed)
    assert rows.count("status = 'completed' AND retry_count = 0") == len(executed(note))
    assert ids <= executed(note).keys(), "a task that was committed is lost"
    assert set(executed(note).values()) == {1}
    assert command.err.count(" registered ") == 1, command
    name.pass_on()
    stops(command)


@pytest.mark.slow
def test_f36_an_idle_supervisor_leaves_a_server_that_takes_no_more_writes(
    pair: Pair, name: Proxy, pgsched_cli: CommandLine
) -> None:
    """F36: its sessions stay, and would answer every question for ever: that there is nothing to do."""
    command = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_DSN": name.dsn})
    command.wait_for("registered")

    def there() -> set[str]:
        return {each.application_name for each in pair.old.server.backends(pair.old.dsn)}

    names = {"pgsched work", "pgsched lease", "pgsched upkeep", "pgsched listen"}
    eventually(lambda: there() == names, "all are connected", timeout=20)
    pair.fence()
    pair.promote()
    name.move(pair.new.dsn)
    began = time.monotonic()
    rows = Rows(pair.new.server, pair.new.dsn)
    rows.add("tick")
    rows.all_ended(timeout=LIMIT)
    eventually(lambda: not there(), "nobody is left", timeout=LIMIT - (time.monotonic() - began))
    stops(command)


@pytest.mark.slow
def test_f36_a_program_that_enqueues_leaves_a_server_that_takes_no_more_writes(pair: Pair, name: Proxy) -> None:
    """F36: its session stays, and would refuse every task for ever."""
    app = App(name.dsn)

    @app.task
    def tick() -> None: ...

    with closing(app):
        tick.enqueue()
        pair.fence()
        eventually(lambda: refused(tick), "the old server takes no more writes")
        pair.promote()
        name.move(pair.new.dsn)
        assert tick.enqueue()
        assert not pair.old.server.backends(pair.old.dsn), "nobody is left"


def refused(task: Task[[], None]) -> bool:
    """Whether one more cannot be enqueued."""
    try:
        task.enqueue()
    except DatabaseError:
        return True
    return False


# In a mount namespace of its own a command sees another file of names.
SPACE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
NO_SPACE = (
    shutil.which("unshare") is None or subprocess.run([*SPACE, "true"], capture_output=True, check=False).returncode
)


@pytest.mark.skipif(bool(NO_SPACE), reason="no mount namespace may be made here")
def test_f36_a_name_is_looked_up_for_each_connection(own: OwnServer, pgsched_cli: CommandLine, tmp_path: Path) -> None:
    """F36: of a supervisor, and of a task that enqueues: nobody goes to where the server was."""
    names = tmp_path / "hosts"
    names.write_text("127.0.0.2 db.test\n")
    wrapper = (*SPACE, "sh", "-c", f'mount --bind {names} /etc/hosts && exec "$@"', "sh")
    rows = Rows(own.server, own.dsn)
    with closing(Proxy(own.dsn, "127.0.0.2")) as first, closing(Proxy(own.dsn, "127.0.0.3", first.port)) as second:
        dsn = make_conninfo(first.dsn, host="db.test", hostaddr="")
        command = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_DSN": dsn}, wrapper=wrapper)
        rows.add("chain", {"left": 1})
        rows.all_ended(timeout=20)
        before, opened = first.accepted, first.open
        assert (opened, second.accepted) == (5, 0)
        # In place: another file of that name would not be the one that is mounted.
        with names.open("r+") as file:
            file.write("127.0.0.3")
        first.cut()
        rows.add("chain", {"left": 1})
        rows.all_ended(timeout=20)
        eventually(lambda: second.open == opened, "all of them have moved")
        assert first.accepted == before
        stops(command)
