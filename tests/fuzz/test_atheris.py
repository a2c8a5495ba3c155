"""Each target for some thousand runs under atheris, where that is installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.support import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_at_once(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, "-runs=3000", "-max_total_time=20"]
    command.append(f"-artifact_prefix={tmp_path}/")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
