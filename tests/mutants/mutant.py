"""What a mutant is."""

from typing import NamedTuple

from tests.support import ROOT


class Mutant(NamedTuple):
    """One guard that is taken out."""

    name: str
    path: str
    """Of the source, below ``pgsched/``."""
    before: str
    """Its text, which stands there once."""
    after: str
    tests: str
    """Node ids below ``tests/``, separated by spaces: at least one of them fails then."""

    @property
    def source(self) -> str:
        return f"pgsched/{self.path}"

    def apply(self, text: str) -> str:
        """The source without the guard.

        :raises ValueError: the guard does not stand there exactly once.
        """
        found = text.count(self.before)
        if found != 1:
            raise ValueError(f"{self.name}: {self.source} has {self.before!r} {found} times, must be once")
        return text.replace(self.before, self.after)

    def fits(self) -> str | None:
        """Why the mutant does not fit its source any more, or None."""
        try:
            self.apply((ROOT / self.source).read_text())
        except (OSError, ValueError) as error:
            return str(error)
        return None


class Redundant(NamedTuple):
    """A guard that is kept although no test can miss it, and why."""

    path: str
    guard: str
    reason: str
