"""Runs scenarios: repeats them, each time in a schema and a directory of its own, and says how far they are.

Figures go to standard output, everything else to standard error.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.registry import SCENARIOS
from benchmarks.results import document, summarise, surroundings, table
from benchmarks.scenario import Bench, Result, Unavailable
from benchmarks.server import Server
from pgsched.store.redaction import one_line

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Progress:
    """One line on standard error that is written over; where that is no terminal, only the beginning of each run."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._prefix = ""
        self._due = 0.0

    def begin(self, prefix: str) -> None:
        """Name the run that begins."""
        self._prefix = prefix
        self._due = 0.0
        if self._terminal:
            self.say("")
            self._due = 0.0
        else:
            print(prefix, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Say what is going on in it; called often, this writes ten times a second at most."""
        if self._terminal and time.monotonic() >= self._due:
            line = f"{self._prefix}: {text}" if text else self._prefix
            room = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{line[:room]}", end="", file=sys.stderr, flush=True)
            self._due = time.monotonic() + 0.1

    def clear(self) -> None:
        """Make room for other lines."""
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks of every scenario."""

    repeat: int | None
    """None: as often as the registry says, once in a quick run."""
    quick: bool
    processes: int
    params: Mapping[str, float]


class Session:
    """One invocation on one server.

    Says so where figures would mean less than they seem to.
    """

    def __init__(self, server: Server, request: Request) -> None:
        self.server = server
        self.request = request
        self.progress = Progress()
        postgres, settings = server.about()
        # Once, because somebody may commit while this goes on, and what runs is what was loaded.
        self._measured_on = surroundings(postgres, settings, quick=request.quick)
        for name, wanted in DURABLE.items():
            if settings[name] != wanted:
                tell(f"warning: {name} is {settings[name]}: commits are not durable, so no other figures compare")

    def measure(self, name: str, path: Path | None, label: str = "") -> None:
        """Run one scenario as often as is asked for, print its figures, and write them to a file."""
        entry = SCENARIOS[name]
        repeat = self.request.repeat or (1 if self.request.quick else entry.repeat)
        scenario = entry.load()
        runs: list[list[Result]] = []
        began = time.monotonic()
        try:
            for number in range(1, repeat + 1):
                self.progress.begin(f"{label}{name}, run {number} of {repeat}")
                with self.server.fresh() as dsn, TemporaryDirectory(prefix="pgsched-bench-") as scratch:
                    runs.append(scenario(self._bench(dsn, Path(scratch))))
        finally:
            self.progress.clear()
        figures = summarise(runs)
        print(f"{name} ({time.monotonic() - began:.0f} s):", *table(figures), sep="\n  ", flush=True)
        if path is not None:
            path.write_text(document(name, self._measured_on, figures))

    def measure_all(self, directory: Path | None) -> list[str]:
        """Run every scenario, the long ones only in a quick run; return the names of those that failed."""
        failed, unavailable = [], []
        names = [name for name, entry in SCENARIOS.items() if self.request.quick or not entry.long]
        for place, name in enumerate(names, 1):
            path = None if directory is None else directory / f"{name}.json"
            try:
                self.measure(name, path, f"[{place}/{len(names)}] ")
            except Unavailable as error:
                unavailable.append(name)
                tell(f"{name} cannot run here: {one_line(error)}")
            except Exception as error:
                failed.append(name)
                tell(f"{name} failed: {described(error)}")
        if unavailable:
            tell(f"left out: {', '.join(unavailable)}")
        return failed

    def _bench(self, dsn: str, scratch: Path) -> Bench:
        return Bench(
            dsn=dsn,
            quick=self.request.quick,
            processes=self.request.processes,
            params=self.request.params,
            scratch=scratch,
            progress=self.progress.say,
            server=self.server,
        )


def tell(text: str) -> None:
    """One line on standard error."""
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


def described(error: BaseException) -> str:
    """An error in one line, without passwords."""
    return f"{type(error).__name__}: {one_line(error)}"
