"""``pgsched systemd``: two files, written below any root, never over what somebody has changed."""

import os
import subprocess
from pathlib import Path

import pytest

from pgsched.cli.main import main
from pgsched.cli.run import run
from pgsched.ops.unit import Service, environment

UNIT = "etc/systemd/system/pgsched.service"
ENVIRONMENT = "etc/pgsched/pgsched.env"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PG"):
            monkeypatch.delenv(name)


def values(text: str) -> dict[str, str]:
    """What a shell reads; of what stands here systemd reads the same."""
    script = f"set -a\n{text}\nexec env -0"
    read = subprocess.run(["sh", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    pairs = dict(pair.split("=", 1) for pair in read.stdout.decode().split("\0") if pair)
    return {name: value for name, value in pairs.items() if name.startswith("PGSCHED_")}


def install(root: Path, *arguments: str) -> int:
    return main(["systemd", "install", "shop.tasks:app", "--root", str(root), *arguments])


def test_install_writes_unit_and_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dsn = "host=db user=queue dbname='the work' service=pgsched"
    told = "--processes 3 --queues mail,images --pooled --drain-timeout 5m --boot-timeout 10m --db-timeout 1m"
    arguments = [*told.split(), "--dsn", dsn]
    assert (
        install(tmp_path, *arguments, "--directory", "/srv/shop", "--user", "shop", "--program", "/opt/x/pgsched") == 0
    )
    unit, given = (tmp_path / UNIT).read_text(), (tmp_path / ENVIRONMENT).read_text()
    expected = Service(
        user="shop",
        directory="/srv/shop",
        command=("/opt/x/pgsched",),
        db_timeout=60.0,
        boot_timeout=600.0,
        drain_timeout=300.0,
    )
    assert unit == expected.text()
    assert "\nUser=shop\n" in unit
    assert "\nExecStart=/opt/x/pgsched run ${PGSCHED_APP} --no-embedded\n" in unit
    assert "\nTimeoutStartSec=740\n" in unit
    assert "\nTimeoutStopSec=580\n" in unit
    assert values(given) == {
        "PGSCHED_APP": "shop.tasks:app",
        "PGSCHED_PROCESSES": "3",
        "PGSCHED_QUEUES": "mail,images",
        "PGSCHED_POOLED": "1",
        "PGSCHED_DRAIN_TIMEOUT": "5m",
        "PGSCHED_BOOT_TIMEOUT": "10m",
        "PGSCHED_DB_TIMEOUT": "1m",
        "PGSCHED_DSN": dsn,
    }
    # It may hold a password.
    assert (tmp_path / ENVIRONMENT).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / UNIT).stat().st_mode & 0o777 == 0o644
    out = capsys.readouterr().out
    assert str(tmp_path / UNIT) in out
    assert "systemctl enable --now pgsched\n" in out
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["pgsched.env", "pgsched.service"]


def test_instances_share_a_unit_and_have_an_environment_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path, "--instance", "mail", "--queues", "mail") == 0
    assert "systemctl enable --now pgsched@mail\n" in capsys.readouterr().out
    assert install(tmp_path, "--instance", "images", "--queues", "images") == 0
    unit = (tmp_path / "etc/systemd/system/pgsched@.service").read_text()
    assert "\nEnvironmentFile=/etc/pgsched/%i.env\n" in unit
    for name in ("mail", "images"):
        assert values((tmp_path / f"etc/pgsched/{name}.env").read_text())["PGSCHED_QUEUES"] == name
    assert not (tmp_path / UNIT).exists()


def test_what_was_changed_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path, "--processes", "2") == 0
    assert install(tmp_path, "--processes", "2") == 0
    changed = tmp_path / ENVIRONMENT
    changed.write_text("PGSCHED_APP=mine:app\n")
    capsys.readouterr()
    (tmp_path / UNIT).unlink()
    assert install(tmp_path, "--processes", "2") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{changed} is there and differs" in err
    assert "--force" in err
    assert changed.read_text() == "PGSCHED_APP=mine:app\n"
    assert not (tmp_path / UNIT).exists(), "neither was written"
    assert install(tmp_path, "--processes", "2", "--force") == 0
    assert values(changed.read_text())["PGSCHED_PROCESSES"] == "2"
    assert changed.stat().st_mode & 0o777 == 0o600


def test_show_prints_what_install_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--processes", "2", "--directory", "/srv/shop"]
    assert install(tmp_path, *arguments) == 0
    capsys.readouterr()
    assert main(["systemd", "show", "shop.tasks:app", *arguments]) == 0
    out = capsys.readouterr().out
    unit, given = (tmp_path / UNIT).read_text(), (tmp_path / ENVIRONMENT).read_text()
    assert out == f"# /{UNIT}\n{unit}\n# /{ENVIRONMENT}\n{given}\n"


def test_a_variable_counts_as_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSCHED_LEASE", "30s")
    assert install(tmp_path) == 0
    assert values((tmp_path / ENVIRONMENT).read_text())["PGSCHED_LEASE"] == "30s"


def test_every_option_of_run_can_be_set_in_the_file() -> None:
    names = {param.variable for param in run.params if hasattr(param, "variable")}
    from pgsched.cli.systemd import _known

    # The unit says itself that there is no embedded server, and how long a start waits.
    assert {name for name, _, _ in _known()} == names - {"PGSCHED_NO_EMBEDDED", "PGSCHED_WAIT_FOR_DATABASE"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--processes", "0"], "--processes '0'"),
        (["--instance", "a/b"], "--instance 'a/b'"),
        (["--instance", "../x"], "--instance '../x'"),
        (["--user", "no such"], "--user 'no such'"),
        (["--directory", "srv"], "--directory 'srv'"),
        (["--directory", "/srv\nUser=root"], "--directory "),
        (["--program", "pgsched"], "--program 'pgsched'"),
        (["--dsn", "host=a\nPGSCHED_APP=evil:app"], "--dsn "),
        (["--dsn", ""], "--dsn ''"),
    ],
)
@pytest.mark.parametrize("command", ["install", "show"])
def test_what_is_wrong_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], named: str
) -> None:
    root = ["--root", str(tmp_path)] if command == "install" else []
    assert main(["systemd", command, "shop.tasks:app", *root, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err
    assert list(tmp_path.iterdir()) == []


def test_an_app_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systemd", "install", "shop", "--root", str(tmp_path)]) == 2
    assert "must be module:attribute" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").write_text("")
    assert install(tmp_path) == 2
    assert "cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("directory", "home"), [("/srv/app", "yes"), ("/home/me/app", "read-only"), ("/root/app", "read-only")]
)
def test_an_app_at_home_stays_readable(directory: str, home: str) -> None:
    assert f"\nProtectHome={home}\n" in Service(directory=directory).text()
    program = Service(command=(f"{directory}/pgsched",)).text()
    assert f"\nProtectHome={home}\n" in program


@pytest.mark.parametrize("linked", ["directory", "program", "interpreter"])
def test_what_lies_at_home_behind_a_link_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], linked: str
) -> None:
    """A virtual environment's Python is a link, often to one below a home."""
    home, away = tmp_path / "home", tmp_path / "srv"
    for place in (home, away):
        place.mkdir()
        (place / "python").touch()
        (place / "app").mkdir()
        (place / "pgsched").write_text(f"#!{away}/bin/python -I\n")
    (away / "bin").mkdir()
    links = {"directory": "current", "program": "bin/pgsched", "interpreter": "bin/python"}
    targets = {"directory": "app", "program": "pgsched", "interpreter": "python"}
    for name, link in links.items():
        (away / link).symlink_to((home if name == linked else away) / targets[name])
    monkeypatch.setattr("pgsched.ops.unit._HOMES", (str(home),))
    told = ["--directory", f"{away}/current", "--program", f"{away}/bin/pgsched"]
    assert main(["systemd", "show", "shop.tasks:app", *told]) == 0
    out = capsys.readouterr().out
    assert "\nProtectHome=read-only\n" in out
    assert f"\nWorkingDirectory={away}/current\n" in out
    (away / links[linked]).unlink()
    (away / links[linked]).symlink_to(away / targets[linked])
    assert main(["systemd", "show", "shop.tasks:app", *told]) == 0
    assert "\nProtectHome=yes\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["gone", "a\nUser=root", os.fsdecode(b"a\xff")])
def test_a_directory_that_cannot_stand_in_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    here, root = tmp_path / name, tmp_path / "root"
    here.mkdir()
    monkeypatch.chdir(here)
    if name == "gone":
        here.rmdir()
    assert install(root) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "directory" in err
    assert not root.exists()


def test_a_queue_may_be_called_true(tmp_path: Path) -> None:
    assert install(tmp_path, "--queues", "True") == 0
    assert values((tmp_path / ENVIRONMENT).read_text())["PGSCHED_QUEUES"] == "True"


def test_nothing_in_a_path_is_taken_for_more_than_a_letter() -> None:
    text = Service(directory="/srv/100% $HOME", command=('/srv/a "b" 100% $x\\y/pgsched',)).text()
    assert "\nWorkingDirectory=/srv/100%% $HOME\n" in text
    assert '\nExecStart="/srv/a \\"b\\" 100%% $$x\\\\y/pgsched" run ' in text


def test_values_come_back_as_they_were_given() -> None:
    odd = {"PGSCHED_A": "", "PGSCHED_B": "a 'b' \"c\" $d `e` \\f #g", "PGSCHED_C": "plain,0-3"}
    text = environment("a:app", odd, [(name, "", "") for name in odd])
    assert values(text) == {"PGSCHED_APP": "a:app", **odd}
