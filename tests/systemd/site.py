"""What the acceptance has at hand: root, who types what stands on a page, a steady load, and the book of executions."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from tests.monitoring.prometheus import Prometheus
from tests.pages import blocks, sections
from tests.proxy import Proxy
from tests.support import ROOT, Server, database_of
from tests.system.rows import Rows
from tests.systemd.conftest import ROLE, Service
from tests.systemd.container import Container

_AUDIT = "/var/lib/pgsched/audit"
_TYPED = "/root/.typed"
"""What the lines that were typed have exported."""
WAITING = 60
"""Tasks that a load keeps in the queue."""


class Execution(NamedTuple):
    """One execution of a task function, as it says itself."""

    task_id: int
    attempt: int
    pid: int
    version: int
    began: float
    """By the monotonic clock, which container and test share."""
    ended: float | None
    """None: it did not come to its end."""


class Site:
    """A host with systemd, a database, and a Prometheus.

    :param port: where the service shows its metrics.
    """

    def __init__(
        self, booted: Container, server: Server, proxy: Proxy, password: str, watched: Prometheus, port: int
    ) -> None:
        self.container = booted
        self.watched = watched
        self.rows = Rows(server, proxy.dsn)
        self._dsn = proxy.dsn
        self._password = password
        database = make_conninfo(
            host="127.0.0.1", port=proxy.port, dbname=database_of(proxy.dsn), user=ROLE, sslmode="disable"
        )
        self.service = Service(booted, "pgsched", database)
        self._here = {
            "host=db dbname=work": database,
            " install tasks:app ": f" install tasks:app --metrics-address 127.0.0.1:{port} ",
        }

    def clear(self) -> None:
        """Leave a host on which nobody has ever installed the service, but for the app."""
        self.service.clear()
        self.container("systemctl disable pgsched; userdel pgsched")
        self.container(f"rm -rf /etc/pgsched /etc/systemd/system/pgsched.service /var/lib/pgsched {_TYPED}", check=True)
        self.container("systemctl daemon-reload", check=True)

    def follow(self, page: str, section: str) -> None:
        """Do all that a section says, line by line; ``...`` in a file is the password."""
        text = sections((ROOT / "docs" / page).read_text())[section]
        for block in blocks(text):
            if block.kind == "ini":
                named = re.findall(r"`(/etc/\S+\.conf)`", "\n".join(text.splitlines()[: block.line]))
                self.container.path(named[-1]).write_text(block.text.replace("...", self._password))
            else:
                for line in block.text.splitlines():
                    self._type(line)

    def type(self, page: str, line: str, instead: str | None = None) -> str:
        """Type a line of a page, and return what it prints.

        :param instead: what is typed here, where the page names another task or number.
        :raises AssertionError: it fails, or the page does not say so.
        """
        text = (ROOT / "docs" / page).read_text()
        lines = {typed for block in blocks(text, "sh") for typed in block.text.splitlines()}
        assert line in lines | set(re.findall(r"`([^`\n]+)`", text)), f"docs/{page} does not say {line}"
        return self._type(instead or line)

    def _type(self, line: str) -> str:
        for there, here in self._here.items():
            line = line.replace(there, here)
        # One shell after another, each with what the one before has exported.
        kept = f"export -p >{_TYPED}"
        return self.container(f"[ ! -e {_TYPED} ] || . {_TYPED}\n{line}\ncode=$?\n{kept}\nexit $code", check=True).out

    @contextmanager
    def load(self) -> Iterator[None]:
        """Keep tasks of a tenth of a second waiting, however fast they are done, and however slow we are."""
        enough = threading.Event()

        def feed() -> None:
            with psycopg.connect(self._dsn, autocommit=True, application_name="tests") as connection:
                while not enough.wait(0.05):
                    connection.execute(
                        "INSERT INTO scheduled_tasks (task_type, payload, run_at)"
                        " SELECT 'work', '{\"seconds\": 0.1}', now() FROM generate_series(1, %s::bigint - ("
                        " SELECT count(*) FROM scheduled_tasks WHERE status = 'queued'))",
                        (WAITING,),
                    )

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            yield
        finally:
            enough.set()
            feeder.join()

    def executions(self) -> list[Execution]:
        """In the order of their beginning."""
        file = self.container.path(_AUDIT)
        found: dict[tuple[int, int, int], Execution] = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            task_id, attempt, pid, version, what, at = line.split()
            key = int(task_id), int(attempt), int(pid)
            if what == "began":
                assert key not in found, f"{line}: begun twice"
                found[key] = Execution(*key, int(version), float(at), None)
            else:
                found[key] = found[key]._replace(ended=float(at))
        return sorted(found.values(), key=lambda each: each.began)

    def rest(self, since: float) -> float:
        """The longest time since then in which no task was at work."""
        until, longest = since, 0.0
        for each in self.executions():
            longest = max(longest, each.began - until)
            until = max(until, each.ended or each.began)
        return longest


def now() -> float:
    """By the clock of the book of executions."""
    return time.monotonic()
