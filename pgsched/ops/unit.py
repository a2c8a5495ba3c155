"""The unit and the environment file that make a service of systemd's out of ``pgsched run``.

Text only: what it is filled with was checked by ``cli``, which also writes the files. ``systemd/`` in the source tree
holds the same text with the defaults filled in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

UNITS: Final = PurePosixPath("/etc/systemd/system")
CONFIGURATION: Final = PurePosixPath("/etc/pgsched")
STARTING: Final = 80
"""Seconds of a start beside a last attempt at the database and the app's import: the wait for it, and room."""
STOPPING: Final = 40
"""Seconds of a stop beside the drain and four calls of a slow database: SIGKILL, and the last words tried again."""
_HOMES: Final = ("/home", "/root", "/run/user")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a unit says that is not the same for all."""

    user: str = "pgsched"
    directory: str = "/srv/app"
    """Where the workers start."""
    command: tuple[str, ...] = ("/srv/app/.venv/bin/pgsched",)
    """The program and what comes before ``run``."""
    behind: tuple[str, ...] = ()
    """Paths that these two lead to by links, and that must be readable too."""
    db_timeout: float = 10.0
    boot_timeout: float = 60.0
    drain_timeout: float = 60.0
    template: bool = False
    """Whether it stands for many: ``pgsched@NAME``, each with an environment file of its own."""

    @property
    def path(self) -> PurePosixPath:
        """Where systemd looks for the unit."""
        return UNITS / ("pgsched@.service" if self.template else "pgsched.service")

    def environment_path(self, instance: str | None) -> PurePosixPath:
        """Where the unit looks for its environment."""
        return CONFIGURATION / f"{instance or 'pgsched'}.env"

    def text(self) -> str:
        """The unit."""
        name = "%i" if self.template else None
        at_home = any(PurePosixPath(path).is_relative_to(home) for path in self._paths() for home in _HOMES)
        filled = {
            "title": "One of several supervisors as a service." if self.template else "One supervisor as a service.",
            "description": "pgsched supervisor %i" if self.template else "pgsched supervisor",
            "user": self.user,
            "directory": _escaped(self.directory),
            "environment": str(self.environment_path(name)),
            # A dollar sign begins a variable, and a percent sign one of systemd's specifiers.
            "command": " ".join(_quoted(_escaped(word).replace("$", "$$"), r'[\\"]') for word in self.command),
            "start": f"{self.db_timeout + self.boot_timeout + STARTING:g}",
            "stop": f"{self.drain_timeout + 4 * self.db_timeout + STOPPING:g}",
            "home": "read-only" if at_home else "yes",
            "state": "pgsched/%i" if self.template else "pgsched",
        }
        template = (files("pgsched.ops") / "units" / "pgsched.service").read_text(encoding="utf-8")
        return re.sub(r"%%(\w+)%%", lambda match: filled[match[1]], template)

    def _paths(self) -> Sequence[str]:
        return (self.directory, *self.command, *self.behind)


def environment(app: str, given: Mapping[str, str], known: Sequence[tuple[str, str, str]]) -> str:
    """The environment file.

    :param given: values by variable.
    :param known: name, default and meaning of every variable that an option has.
    """
    lines = ["# Read by systemd when the service starts; readable for root alone.", f"PGSCHED_APP={_quoted(app)}"]
    for name, default, meaning in known:
        value = f"{name}={_quoted(given[name])}" if name in given else f"#{name}={default}"
        lines += ["", f"# {meaning}", value]
    return "\n".join([*lines, ""])


def _quoted(word: str, special: str = r'[\\"$`]') -> str:
    """A word as systemd reads it back.

    :param special: what needs a backslash: in an environment file more than in a command line.
    """
    if word and _PLAIN.fullmatch(word):
        return word
    return '"' + re.sub(special, r"\\\g<0>", word) + '"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
