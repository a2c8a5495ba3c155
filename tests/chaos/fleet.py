"""The storm's supervisors: each in a seat with a relay and a wall clock of its own, and started again when it dies.

What systemd does with ``Restart=always``: a moment's wait, then a new process. Runs in the storm's process.
"""

import os
import re
import signal
from pathlib import Path

from pgsched.errors import ExitCode
from tests.chaos import app
from tests.chaos.plan import QUEUES
from tests.chaos.terms import SeatTerms
from tests.command import Command
from tests.faketime import set_clock, wrong_clock
from tests.proxy import Proxy
from tests.support import Process, gone, processes

PROCESSES = 2
LINES = 4
"""Connections of a supervisor; the one that listens is left out behind a pooler."""
RESTART = 0.5
"""Seconds between a death and the new process."""
LOOK = 0.25
"""Seconds between two looks at what is below a supervisor: the process table is long."""
RUNTIME = "runtime"
"""Where supervisors keep their metrics, beside the journal: in /dev/shm they would be among those of others."""
LEASE_LOST = re.compile(r"^\S+ ERROR lease_lost supervisor=(\d+)", re.MULTILINE)
SHOWN = 4000
"""Characters of a log that are shown from a complaint on."""
COMPLAINT = re.compile(r"^(?:\S+ ERROR (?!lease_lost|database_lost)|Traceback|.*never retrieved).*$", re.MULTILINE)


def accepted(code: int, err: str) -> bool:
    """Whether a storm brings a supervisor to such an end: it is never a crash.

    :param code: its exit code, or the signal that has killed it, negative.
    :param err: what it has said.
    """
    if code == -signal.SIGTERM:
        # Told to stop before Python could hear it.
        return not err
    if code == ExitCode.POOL:
        return "(SIGKILL) before it was ready" in err
    return code in (ExitCode.OK, ExitCode.DATABASE, -signal.SIGKILL)


class Seat:
    """A place for one supervisor at a time.

    :param directory: its working directory; what lies there can be imported.
    :param library: what makes its wall clock wrong, or None.
    """

    def __init__(
        self,
        number: int,
        dsn: str,
        directory: Path,
        journal: Path,
        lease: float,
        library: str | None,
        terms: SeatTerms,
    ) -> None:
        self.number = number
        self.terms = terms
        self.proxy = Proxy(dsn)
        self.queue = f"only-{number}"
        self.command: Command | None = None
        self.started: list[int] = []
        """Pids of all that ever sat here."""
        self.deaths: dict[int, float] = {}
        self.leases_lost: dict[int, float] = {}
        self.complaints: list[str] = []
        self.orphans: dict[int, str] = {}
        """What was below a supervisor that has died, and has to go too."""
        self._directory = directory
        self._arguments = (
            *("run", "tests.chaos.app:app", "--processes", str(PROCESSES), "--queues", ",".join((*QUEUES, self.queue))),
            *("--lease", str(lease), "--reap-interval", "1", "--db-timeout", "2", "--drain-timeout", "3"),
            *("--metrics-address", "127.0.0.1:0"),
            *terms.arguments(),
        )
        self._clock = directory / f"clock-{number}"
        self._environment = {"PGSCHED_DSN": self.proxy.dsn, app.VARIABLE: str(journal)}
        runtime = journal.with_name(RUNTIME)
        runtime.mkdir(exist_ok=True)
        self._environment["XDG_RUNTIME_DIR"] = str(runtime)
        if library is not None:
            self._environment |= wrong_clock(library, self._clock)
        self.step_clock(0)
        self._retired: list[Command] = []
        """Ended, and kept: to close one kills what is left of it, which is to be found first."""
        self._seen = 0
        self._restart_at = self._look_at = 0.0
        self._known: dict[int, str] = {}

    @property
    def pid(self) -> int | None:
        """Of the supervisor that sits here and lives."""
        return self.command.pid if self.command is not None and self.command.running else None

    @property
    def connected(self) -> bool:
        """Whether its supervisor has all its connections."""
        return self.proxy.open == LINES - self.terms.pooled

    def tend(self, now: float) -> None:
        """Note deaths and what the log says; start a supervisor where none is."""
        if self.command is not None:
            self._read(self.command, now)
            if self.command.running:
                if now >= self._look_at:
                    self._look_at = now + LOOK
                    self._known = {found.pid: found.command for found in self.below()}
                return
            self._bury(self.command, now)
        if self.command is None and now >= self._restart_at:
            self.command = Command(self._arguments, self._environment, self._directory)
            self.started.append(self.command.pid)
            self._seen = 0

    def below(self) -> list[Process]:
        """Workers and forkserver of the supervisor that lives."""
        pid = self.pid
        return [found for found in processes() if found.parent == pid and not found.dead] if pid else []

    def workers(self) -> list[Process]:
        return [found for found in self.below() if found.name.startswith("pgsched-slot")]

    def forkservers(self) -> list[Process]:
        return [found for found in self.below() if found.name == "pgsched-fork"]

    def zombies(self) -> list[Process]:
        pid = self.pid
        return [found for found in processes() if found.parent == pid and found.dead] if pid else []

    def descriptors(self) -> list[str]:
        """What the supervisor has open, by kind."""
        found = []
        for entry in os.listdir(f"/proc/{self.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{self.pid}/fd/{entry}")
                found.append(re.sub(r"pgsched-metrics-[^/]*|[\d\[\]]+", "", target))
            except OSError:
                continue
        return sorted(found)

    def step_clock(self, seconds: int) -> None:
        """Set the wall clock of whoever sits here so many seconds ahead."""
        set_clock(self._clock, seconds)

    def ask_to_stop(self) -> None:
        if self.command is not None and self.command.running:
            self.command.signal(signal.SIGTERM)

    def close(self) -> None:
        """End whatever is left, and the relay."""
        for command in (*self._retired, self.command):
            if command is not None:
                command.close()
        self.proxy.close()

    def _read(self, command: Command, now: float) -> None:
        text = command.err
        new = text[self._seen : text.rfind("\n") + 1]
        self._seen += len(new)
        self.leases_lost.update((int(found[1]), now) for found in LEASE_LOST.finditer(new))
        if found := COMPLAINT.search(new):
            self.complaints.append(f"{command.pid}: {new[found.start() :][:SHOWN]}")

    def _bury(self, command: Command, now: float) -> None:
        ended = command.wait()
        self._read(command, now)
        self.deaths[command.pid] = now
        if not accepted(ended.code, command.err):
            self.complaints.append(f"{command.pid} ended with {ended.code}:{command}")
        self.orphans |= self._known
        self._known = {}
        self._retired.append(command)
        self.command = None
        self._restart_at = now + RESTART

    def tend_last(self, now: float) -> None:
        """Note the end of a supervisor that was told to stop, and start none."""
        if self.command is not None:
            self._bury(self.command, now)

    def left_behind(self) -> dict[int, str]:
        """Processes that have outlived the supervisor that they were of."""
        self.orphans = {pid: name for pid, name in self.orphans.items() if not gone(pid)}
        return self.orphans
