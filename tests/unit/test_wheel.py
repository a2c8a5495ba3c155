"""Where the embedded server's directory is, for whom."""

import os
import re
from pathlib import Path

import pytest

from pgsched.errors import UsageError
from pgsched.ops import wheel
from pgsched.ops.unit import Service


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("PGSCHED_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return monkeypatch


def test_the_user_decides(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PGSCHED_DATA_DIR", "/srv/queue")
    assert wheel.home() == Path("/srv/queue")


def test_a_relative_choice_counts_from_the_working_directory(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.chdir(tmp_path)
    environment.setenv("PGSCHED_DATA_DIR", "queue")
    assert wheel.home() == tmp_path / "queue"


def test_root_has_a_place_in_var(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(os, "geteuid", lambda: 0)
    assert wheel.home() == Path("/var/lib/pgsched-embedded")


@pytest.mark.parametrize("template", [False, True])
def test_systemd_does_not_give_roots_place_to_a_units_user(environment: pytest.MonkeyPatch, template: bool) -> None:
    environment.setattr(os, "geteuid", lambda: 0)
    [state] = re.findall("^StateDirectory=(.+)$", Service(template=template).text(), re.MULTILINE)
    given = Path("/var/lib", state)
    assert not wheel.home().is_relative_to(given)
    assert not given.is_relative_to(wheel.home())


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("/data", "/data/pgsched"),
        ("", "/home/someone/.local/share/pgsched"),
        ("relative", "/home/someone/.local/share/pgsched"),
    ],
)
def test_others_have_one_in_their_data_directory(environment: pytest.MonkeyPatch, base: str, expected: str) -> None:
    environment.setenv("XDG_DATA_HOME", base)
    assert wheel.home() == Path(expected)


def test_without_a_home_directory_one_has_to_be_named(environment: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    environment.setattr(Path, "home", no_home)
    with pytest.raises(UsageError, match=r"no home directory .* set PGSCHED_DATA_DIR"):
        wheel.home()
