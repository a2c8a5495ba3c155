"""Runs the mutants: each in a copy of the tree, on one server, with the fewest tests that must fail.

    python -m tests.mutants                     all of them, two at a time
    python -m tests.mutants --list              their names, sources and tests
    python -m tests.mutants --only NAME ...     some of them

First all tests run once without a mutant, and must pass. A mutant that no test misses, or whose text is not in its
source any more, is a failure. ``PGSCHED_TEST_DSN`` names a server to use instead of an embedded one.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from pgsched.ops import embedded
from tests.conftest import TEST_SETTINGS
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS, REDUNDANT
from tests.support import ROOT

TREE = ("pgsched", "tests", "docs", "examples", "systemd", "pyproject.toml", "setup.cfg", "README.md")
TIMEOUT, ENDED_WITHIN = 20, 90
"""Seconds for one test, and for all of a mutant: without a guard some never end, and some not even then."""
ALL_ENDED_WITHIN = 1800
"""Seconds for all tests without a mutant."""
_FAILED, _PASSED, _ENDLESS = 1, 0, -1


@contextmanager
def server() -> Iterator[str]:
    """The DSN of the server that all tests share."""
    given = os.environ.get("PGSCHED_TEST_DSN")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="pgsched-mutants-") as directory:
        place = Path(directory)
        place.chmod(0o711)
        handle = embedded.start(place / "server", settings=TEST_SETTINGS)
        try:
            yield handle.dsn
        finally:
            handle.close()


class Trees:
    """Copies of the tree, of which each thread borrows one."""

    def __init__(self, directory: Path, count: int, dsn: str) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._dsn = dsn
        for number in range(count):
            tree = directory / str(number)
            tree.mkdir()
            for name in TREE:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, tree)
            self._free.put(tree)

    def test(self, tests: Sequence[str], mutant: Mutant | None = None) -> tuple[int, str]:
        """Run some tests, with a mutant in place; return pytest's exit code and output."""
        tree = self._free.get()
        try:
            if mutant is None:
                return self._pytest(tree, tests, ALL_ENDED_WITHIN)
            path = tree / mutant.source
            healthy = path.read_text()
            path.write_text(mutant.apply(healthy))
            try:
                return self._pytest(tree, tests, ENDED_WITHIN)
            finally:
                path.write_text(healthy)
        finally:
            self._free.put(tree)

    def _pytest(self, tree: Path, tests: Sequence[str], ended_within: float) -> tuple[int, str]:
        # No bytecode: two mutants of a source may have the same size, within the same second.
        environment = os.environ | {
            "PGSCHED_TEST_DSN": self._dsn,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(tree),
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", f"--timeout={TIMEOUT}"]
        command += ["-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)]
        with subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as run:
            try:
                output, _ = run.communicate(timeout=ended_within)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                return _ENDLESS, f"ERROR no end within {ended_within} s"
        return run.returncode, output


def judge(trees: Trees, mutant: Mutant) -> str | None:
    """Run a mutant; return what is wrong, or None when a test has found it out."""
    if fault := mutant.fits():
        return fault
    began = time.monotonic()
    code, output = trees.test(mutant.tests.split(), mutant)
    seconds = time.monotonic() - began
    if code in (_FAILED, _ENDLESS):
        red = next((line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))), "FAILED")
        print(f"red       {mutant.name:32} {seconds:5.1f} s  {red.partition(' ')[2].partition(' - ')[0]}", flush=True)
        return None
    fault = f"survives {mutant.tests}" if code == _PASSED else f"pytest ends with {code}:\n{output[-2000:]}"
    print(f"SURVIVES  {mutant.name:32} {seconds:5.1f} s  {fault}", flush=True)
    return f"{mutant.name}: {fault}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(MUTANTS), help="run these")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at once (default 2)")
    arguments = parser.parse_args()
    chosen = [MUTANTS[name] for name in arguments.only or MUTANTS]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name:32} {mutant.source:40} {mutant.tests}")
        for guard in REDUNDANT:
            print(f"{'(none)':32} pgsched/{guard.path:32} {guard.guard}: {guard.reason}")
        return 0
    with server() as dsn, tempfile.TemporaryDirectory(prefix="pgsched-mutants-") as directory:
        Path(directory).chmod(0o711)
        trees = Trees(Path(directory), arguments.jobs, dsn)
        tests = sorted({test for mutant in chosen for test in mutant.tests.split()})
        code, output = trees.test(tests)
        if code != _PASSED:
            print(f"without a mutant, pytest ends with {code}:\n{output[-4000:]}")
            return 1
        with ThreadPoolExecutor(arguments.jobs) as jobs:
            faults = [fault for fault in jobs.map(lambda mutant: judge(trees, mutant), chosen) if fault]
    print(f"{len(chosen) - len(faults)} of {len(chosen)} mutants were found out")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
