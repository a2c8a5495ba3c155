"""The unit file that is shipped: what it promises must fit the program's own limits (F31)."""

import configparser

from pgsched.config import Settings
from pgsched.errors import ExitCode
from tests.support import ROOT


def read() -> configparser.ConfigParser:
    # A unit file may name an option twice, and ours does not; names are case-sensitive.
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string((ROOT / "systemd/pgsched.service").read_text())
    return parser


def test_f31_the_drain_ends_before_systemd_ends_it() -> None:
    """F31: and only the supervisor is signalled at first, while whatever it leaves is killed."""
    service = read()["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) >= Settings(app="a:b").drain_timeout + 20
    assert service["Type"] == "notify"
    assert "SendSIGKILL" not in service


def test_f31_what_does_not_mend_by_itself_is_not_started_again() -> None:
    """F31, F24: no loop of starts that all end alike; an outage is waited for instead, without a limit."""
    unit = read()
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert float(service["RestartSec"]) >= 1
    never = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert {ExitCode.USAGE, ExitCode.APP} <= never
    assert ExitCode.DATABASE not in never
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
