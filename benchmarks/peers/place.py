"""Where a comparison happens: what its processes have to know, handed to them through the environment.

The workers of every peer are processes of their own, started by that peer's command line, so a module that they import
finds its database, its files and the size of its work here. Holds values only.
"""

import os
from dataclasses import dataclass
from pathlib import Path

DIRECTORY, DSN, REDIS, LOOPS = "BENCH_PEERS_DIRECTORY", "BENCH_PEERS_DSN", "BENCH_PEERS_REDIS", "BENCH_PEERS_LOOPS"

ROOT = Path(__file__).resolve().parents[2]
"""From where ``benchmarks`` can be imported."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One peer's database or Redis, the directory in which its tasks note what they did, and its two processes."""

    directory: Path
    dsn: str
    redis: str
    """The path of the server's Unix socket; empty where none is needed."""
    loops: int
    """How long ``burn`` takes."""
    processes: int

    @property
    def environment(self) -> dict[str, str]:
        """What a worker's environment has to hold."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {
            "PYTHONPATH": path,
            DIRECTORY: str(self.directory),
            DSN: self.dsn,
            REDIS: self.redis,
            LOOPS: str(self.loops),
        }


def setting(name: str) -> str:
    """A value from the environment of a worker; empty in the benchmark's own process."""
    return os.environ.get(name, "")
