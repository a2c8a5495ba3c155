"""The unit files that are shipped: what they promise must fit the program's own limits (F31)."""

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from pgsched.cli.main import main
from pgsched.cli.run import run
from pgsched.config import Settings
from pgsched.errors import ExitCode
from pgsched.ops.unit import Service
from pgsched.pool.pool import END_WITHIN, PoolSettings
from pgsched.supervisor.supervisor import FINAL_SECONDS
from tests.pages import sections
from tests.support import ROOT

UNITS = ["pgsched.service", "pgsched@.service"]
EXPOSURE = 2.5
"""What ``systemd-analyze security`` may say at most."""


class Unit:
    """A unit file, read: all values of each name, whatever section they stand in."""

    def __init__(self, name: str) -> None:
        self.path: Path = ROOT / "systemd" / name
        self.text = self.path.read_text()
        self.values: dict[str, list[str]] = defaultdict(list)
        for line in self.text.splitlines():
            if match := re.fullmatch(r"(\w+)=(.*)", line):
                self.values[match[1]].append(match[2])

    def __getitem__(self, name: str) -> str:
        [value] = self.values[name]
        return value

    @property
    def environment(self) -> dict[str, str]:
        return dict(value.split("=", 1) for value in self.values["Environment"])


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> Unit:
    return Unit(request.param)


def test_it_is_what_the_command_writes(unit: Unit) -> None:
    assert unit.text == Service(template="@" in unit.path.name).text()


def needed(drain_timeout: float, db_timeout: float) -> float:
    """Seconds of a stop at the worst: the drain, workers that are hard to kill, a call before and after, last words."""
    killed = PoolSettings(app="a:b", processes=1).grace + 2 * END_WITHIN
    return drain_timeout + killed + 2 * db_timeout + FINAL_SECONDS + 2 * db_timeout


def test_f31_the_drain_ends_before_systemd_ends_it(unit: Unit) -> None:
    """F31: and only the supervisor is signalled at first, while whatever it leaves is killed."""
    assert unit["KillMode"] == "mixed"
    settings = Settings(app="a:b")
    assert float(unit["TimeoutStopSec"]) >= needed(settings.drain_timeout, settings.db_timeout)
    given = Service(drain_timeout=3600, db_timeout=60).text()
    assert float(re.search(r"TimeoutStopSec=(.*)", given)[1]) >= needed(3600, 60)  # type: ignore[index]
    assert unit["Type"] == "notify"
    assert "SendSIGKILL" not in unit.values


def test_f31_what_does_not_mend_by_itself_is_not_started_again(unit: Unit) -> None:
    """F31, F24: no loop of starts that all end alike."""
    assert unit["Restart"] == "on-failure"
    assert float(unit["RestartSec"]) >= 1
    never = {int(code) for code in unit["RestartPreventExitStatus"].split()}
    assert {ExitCode.USAGE, ExitCode.APP} <= never
    assert not {ExitCode.DATABASE, ExitCode.RESOURCE} & never
    assert {int(code) for code in unit["SuccessExitStatus"].split()} == {ExitCode.FORCED}


def test_starts_are_limited_but_not_those_that_wait_for_the_database(unit: Unit) -> None:
    wait = float(unit.environment["PGSCHED_WAIT_FOR_DATABASE"].removesuffix("s"))
    burst, interval = int(unit["StartLimitBurst"]), float(unit["StartLimitIntervalSec"])
    assert 0 < burst < 10
    # Those that fail at once are stopped by the limit, and those that wait never come so thick.
    assert burst * (float(unit["RestartSec"]) + 1) < interval
    assert burst * (wait + float(unit["RestartSec"])) > interval
    # What the start may take: the wait, a last attempt at the database, and the app's import.
    settings = Settings(app="a:b")
    assert float(unit["TimeoutStartSec"]) > wait + settings.db_timeout + settings.boot_timeout
    assert "PGSCHED_WAIT_FOR_DATABASE" in {getattr(param, "variable", None) for param in run.params}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_it_exposes_little(unit: Unit, tmp_path: Path) -> None:
    # Some versions take a template only under an instance's name.
    copy = tmp_path / unit.path.name.replace("@.", "@mail.")
    copy.write_text(unit.text)
    command = [
        "systemd-analyze",
        "security",
        "--offline=yes",
        f"--threshold={EXPOSURE * 10:.0f}",
        "--no-pager",
        str(copy),
    ]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if "unrecognized option" in judged.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert "Overall exposure level" in judged.stdout, judged
    assert judged.returncode == 0, judged.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line(unit: Unit, tmp_path: Path) -> None:
    copy = tmp_path / unit.path.name.replace("@.", "@mail.")
    copy.write_text(unit.text.replace("/srv/app/.venv/bin/pgsched", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    # It also reads the host's own units, and complains of those.
    complaints = [line for line in verified.stderr.splitlines() if copy.name in line]
    assert complaints == []


def test_what_stays_open_has_its_reason(unit: Unit) -> None:
    for name in ("MemoryDenyWriteExecute", "PrivateNetwork", "IPAddressDeny", "ProcSubset", "@resources"):
        assert name not in unit.values
        assert re.search(rf"^# .*{name}[^:]*: \w", unit.text, re.MULTILINE), name


def _commands() -> list[str]:
    """Every line of the page that is to be typed, but for the section that test_acceptance.py types as it stands."""
    parts = sections((ROOT / "docs/systemd.md").read_text())
    del parts["Install"]
    found = re.findall(r"^ *```sh\n(.*?)^ *```", "".join(parts.values()), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in found for line in block.splitlines()]


@pytest.mark.parametrize("command", _commands())
def test_the_page_says_nothing_that_was_not_tried(command: str, tmp_path: Path) -> None:
    if command.startswith("pgsched systemd install "):
        assert main([*shlex.split(command)[1:], "--root", str(tmp_path)]) == 0
    elif command != "systemctl edit pgsched":
        # Which needs a terminal; the tests write the file that it writes.
        tests = (ROOT / "tests/systemd").glob("*.py")
        assert any(f'"{command}"' in file.read_text() or f"{command} " in file.read_text() for file in tests), command
