"""Runs ``python -m pgsched`` as a user does: a process in a session of its own, with its output collected.

Two threads per command read its output, so a test can wait for a line without sleeping and a full pipe stops nobody.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from tests.support import PATIENCE, ROOT, Process, descendants, eventually, gone, processes


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Negative: minus the signal that ended it."""
    out: str
    err: str


class Command:
    """A running command.

    :param arguments: what comes after ``pgsched``.
    :param environment: on top of the test's own, without any ``PG…`` and ``PGSCHED_…`` variable of that.
    :param directory: the working directory; modules there can be imported.
    :param wrapper: a command that is to start this one, with its arguments.
    :param stdin: a descriptor; default an empty input.
    """

    def __init__(
        self,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        directory: Path,
        *,
        wrapper: tuple[str, ...] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        paths = {"PYTHONPATH": os.pathsep.join((str(directory), str(ROOT))), "PYTHONUNBUFFERED": "1"}
        self.arguments = arguments
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "pgsched", *arguments],
            cwd=directory,
            env={**inherited, **paths, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._changed = threading.Condition()
        self._texts = {"out": "", "err": ""}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self._process.stdout), ("err", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def out(self) -> str:
        return self._texts["out"]

    @property
    def err(self) -> str:
        return self._texts["err"]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, pattern: str, *, timeout: float = PATIENCE, after: int = 0) -> re.Match[str]:
        """Wait until a line of the output, of either stream, matches; the command's end ends the waiting.

        :param after: how many matches to pass over first.
        """
        deadline = time.monotonic() + timeout
        expression = re.compile(pattern, re.MULTILINE)
        with self._changed:
            while True:
                ended = not any(reader.is_alive() for reader in self._readers)
                found = [match for text in self._texts.values() for match in expression.finditer(text)]
                if len(found) > after:
                    return found[after]
                left = deadline - time.monotonic()
                if ended or left <= 0:
                    why = f"ended with {self._process.poll()}" if ended else f"still runs after {timeout:g} s"
                    raise AssertionError(
                        f"no {pattern!r} in the output of pgsched {self.arguments}, which {why}:{self}"
                    )
                self._changed.wait(min(left, 0.1))

    def wait(self, timeout: float = PATIENCE) -> Ended:
        """Wait for the end of the command."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"pgsched {self.arguments} still runs after {timeout:g} s:{self}") from None
        for reader in self._readers:
            reader.join(PATIENCE)
        return Ended(code, self.out, self.err)

    def signal(self, number: int) -> None:
        """Send a signal to the command's first process only, as systemd does with KillMode=mixed."""
        self._process.send_signal(number)

    def processes(self) -> list[Process]:
        """The command's process, everything below it, and everything in its session, the dead left out."""
        below = {found.pid: found for found in descendants(self.pid)}
        members = {found.pid: found for found in processes() if found.session == self.pid and not found.dead}
        return list({**members, **below}.values())

    def close(self) -> None:
        """End whatever is left of the command: its descendants too, also those in sessions of their own."""
        left = [found.pid for found in self.processes()]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(PATIENCE)
        eventually(lambda: all(gone(pid) for pid in left), "the command's processes are gone")
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __str__(self) -> str:
        return f"\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-8000:]}"

    def _read(self, name: str, stream: IO[bytes] | None) -> None:
        assert stream is not None
        while True:
            try:
                data = os.read(stream.fileno(), 65536)
            except (OSError, ValueError):
                data = b""
            with self._changed:
                self._texts[name] += data.decode(errors="replace")
                self._changed.notify_all()
            if not data:
                return
