"""Fixtures of the system floor: the command line as a process, and the table in which task functions sign in.

``pgsched_cli("run", "tasks:app")`` starts a command in the test's directory with ``PGSCHED_DSN`` set to the test's
database, or to a pooler before it; ``pgsched_cli.run(...)`` also waits for its end. Task functions sign in with
:mod:`tests.audit`.
"""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import audit as audit_module
from tests.audit import Audit
from tests.bouncer import POOLED
from tests.command import Command, Ended
from tests.support import PATIENCE, Server


class CommandLine:
    """Starts commands, and ends them all with the test."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.environment = dict(environment)
        self.commands: list[Command] = []

    def __call__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> Command:
        """Start a command. `environment` adds to :attr:`environment`; for the rest see :class:`Command`."""
        combined = {**self.environment, **(environment or {})}
        command = Command(arguments, combined, self.directory, wrapper=wrapper, stdin=stdin)
        self.commands.append(command)
        return command

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = PATIENCE) -> Ended:
        """Start a command and wait for its end."""
        return self(*arguments, environment=environment).wait(timeout)

    def module(self, name: str, source: str) -> None:
        """Write a module that commands can import."""
        (self.directory / f"{name}.py").write_text(source)


@pytest.fixture
def pgsched_cli(dsn: str, given_dsn: str, tmp_path: Path) -> Iterator[CommandLine]:
    """``pgsched`` as a user starts it; see :class:`CommandLine`."""
    # Port 0: several supervisors of one test, and other sessions on the machine, must not meet on the default port.
    line = CommandLine(
        tmp_path,
        {
            "PGSCHED_DSN": given_dsn,
            **({"PGSCHED_POOLED": "1"} if POOLED else {}),
            "PGSCHED_METRICS_ADDRESS": "127.0.0.1:0",
            "PGSCHED_DATA_DIR": str(tmp_path / "data"),
            audit_module.VARIABLE: dsn,
        },
    )
    yield line
    for command in reversed(line.commands):
        command.close()


@pytest.fixture
def audit(server: Server, dsn: str) -> Audit:
    """The table in which task functions sign in, outside of pgsched's transactions."""
    return Audit(server, dsn)
