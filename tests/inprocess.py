"""Calls ``pgsched`` in the test's own process: ten times as fast as a process, for commands that start none."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgsched.cli.main import main
from pgsched.store import redaction
from tests.command import Ended


class InProcess:
    """Runs commands with no ``PG…`` variable but those that it is given.

    :param environment: for every command.
    """

    def __init__(
        self, environment: Mapping[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._environment = dict(environment)
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a command to its end."""
        with self._monkeypatch.context() as patched:
            # A new process would have no secret in mind that an earlier command has met.
            patched.setattr(redaction, "_secrets", set())
            for name in [name for name in os.environ if name.startswith("PG")]:
                patched.delenv(name)
            for name, value in {**self._environment, **(environment or {})}.items():
                patched.setenv(name, value)
            self._capsys.readouterr()
            code = main(arguments)
            return Ended(code, *self._capsys.readouterr())


@contextmanager
def server_place() -> Iterator[Path]:
    """A directory for an embedded server; as root that runs as another user, who has to get through."""
    place = Path(tempfile.mkdtemp(prefix="pgsched-cli-"))
    place.chmod(0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place)
