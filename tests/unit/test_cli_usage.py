"""What a user can mistype ends in one line and exit code 2, before anything is connected or started (F83)."""

import os
import subprocess
import sys

import pytest

from pgsched.cli.main import main
from tests.support import PATIENCE, ROOT


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PG"):
            monkeypatch.delenv(name)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must end with exit code 2 and one line; return the line."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("pgsched: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


NUMBERS = [
    ("--processes", "0"),
    ("--processes", "-1"),
    ("--processes", "1.5"),
    ("--processes", "abc"),
    ("--processes", ""),
    ("--processes", "100000"),
    ("--db-timeout", "0"),
    ("--db-timeout", "-5"),
    ("--poll-interval", "0"),
    ("--poll-interval", "nan"),
    ("--lease", "1"),
    ("--lease", "1h"),
    ("--reap-interval", "0"),
    ("--drain-timeout", "-1"),
    ("--max-tasks-per-worker", "0"),
    ("--max-memory-per-worker", "1"),
    ("--namespace", "2147483648"),
    ("--metrics-address", "127.0.0.1:70000"),
    ("--metrics-address", "9808"),
    ("--start-method", "fork"),
    ("--log-format", "xml"),
    ("--queues", "a,,b"),
    ("--prune-older-than", "yesterday"),
    ("--wait-for-database", "2h"),
]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "abc", "", "1025"])
def test_scale_names_the_number_and_what_would_be_right(capsys: pytest.CaptureFixture[str], value: str) -> None:
    line = refused(capsys, "scale", "--no-embedded", "--", value)
    assert value in line


def test_scale_names_the_supervisors_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--supervisor 'web-1,'" in refused(capsys, "scale", "2", "--no-embedded", "--supervisor", "web-1,")


@pytest.mark.parametrize(("option", "value"), NUMBERS)
def test_run_names_option_value_and_what_would_be_right(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    line = refused(capsys, "run", "tasks:app", "--no-embedded", f"{option}={value}")
    assert option in line
    assert (value.split(",")[1] if "," in value else value) in line
    assert "must" in line


@pytest.mark.parametrize(("option", "value"), NUMBERS)
def test_a_variable_is_checked_like_its_option_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    variable = f"PGSCHED_{option[2:].replace('-', '_').upper()}"
    monkeypatch.setenv(variable, value)
    assert variable in refused(capsys, "run", "tasks:app", "--no-embedded")


@pytest.mark.parametrize("value", ["", "maybe", "2"])
def test_a_flags_variable_is_yes_or_no(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PGSCHED_POLL_ONLY", value)
    line = refused(capsys, "run", "tasks:app", "--no-embedded")
    assert f"PGSCHED_POLL_ONLY {value!r}" in line


@pytest.mark.parametrize("app", ["tasks", "tasks:", ":app", "a b:app", ""])
def test_app_is_module_and_attribute(capsys: pytest.CaptureFixture[str], app: str) -> None:
    assert "must be module:attribute" in refused(capsys, "run", app, "--no-embedded")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("[1]", "must be an object"),
        ('"a"', "must be an object"),
        ("null", "must be an object"),
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ('{"a": NaN}', "payload.a is nan"),
        ('{"a": -Infinity}', "payload.a is -inf"),
        ('{"a": 1e999}', "payload.a is inf"),
        (r'{"a": "\u0000"}', "payload.a contains a NUL"),
        (r'{"\u0000": 1}', "NUL"),
        (r'{"a": "\ud800"}', "lone surrogate"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested deeper"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_a_payload_that_cannot_be_stored(capsys: pytest.CaptureFixture[str], payload: str, reason: str) -> None:
    line = refused(capsys, "enqueue", "compress", payload, "--no-embedded")
    assert reason in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--run-at", "2030-01-31T06:00:00"], "needs a time zone"),
        (["--run-at", "tomorrow"], "must be a date and time"),
        (["--run-at", "2030-01-31T06:00Z", "--delay", "5"], "not both"),
        (["--delay", "-1"], "--delay '-1'"),
        (["--delay", "soon"], "--delay 'soon'"),
        (["--priority", "40000"], "--priority '40000'"),
        (["--queue", " "], "--queue ' '"),
        (["--queue", "q" * 65], "at most 64"),
        (["--max-retries", "-1"], "--max-retries '-1'"),
        (["--timeout", "0"], "--timeout '0'"),
        (["--unique-key", ""], "--unique-key ''"),
        (["--unique-key", "k" * 513], "1 to 512 characters"),
    ],
)
def test_enqueue_options(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    assert reason in refused(capsys, "enqueue", "compress", "--no-embedded", *arguments)


def test_an_unknown_option_points_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pgsched run --help" in refused(capsys, "run", "tasks:app", "--procesess", "4")


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such command 'start'" in refused(capsys, "start")


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
def test_an_id_that_is_none(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert refused(capsys, command, "--no-embedded", "x").startswith("pgsched: ID 'x': must be a whole number")


def test_a_group_without_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "systemd") == "pgsched: Missing command (see `pgsched systemd --help`)\n"


def test_no_command_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_without_a_database_and_an_embedded_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "enqueue", "compress", "--no-embedded")
    assert "--dsn" in line
    assert "PGSCHED_DSN" in line


@pytest.mark.parametrize("dsn", ["", "  "])
def test_an_empty_dsn_is_no_wish_for_the_embedded_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    assert "--dsn is empty" in refused(capsys, "enqueue", "compress", "--dsn", dsn)
    monkeypatch.setenv("PGSCHED_DSN", dsn)
    assert "PGSCHED_DSN is empty" in refused(capsys, "enqueue", "compress")


def test_more_workers_than_cpus_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", "tasks:app", "--no-embedded", "--processes", "1024"])
    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert lines[0].startswith("pgsched: warning: --processes 1024, but this process may use only ")
    assert len(lines) == 2


@pytest.mark.parametrize("stderr", ["closed pipe", "full pipe", "full disk"])
def test_f13_the_exit_code_is_told_where_the_line_cannot_be(stderr: str) -> None:
    """F13: a service manager goes by it, and would wait for ever for a command that waits for a reader."""
    reading, writing = os.pipe()
    output = os.open("/dev/full", os.O_WRONLY) if stderr == "full disk" else writing
    if stderr == "full pipe":
        fill(writing)
    else:
        os.close(reading)
    command = subprocess.Popen([sys.executable, "-m", "pgsched", "run", "nonsense"], cwd=ROOT, stderr=output)
    try:
        assert command.wait(PATIENCE) == 2
    finally:
        command.kill()
        command.wait()
        for descriptor in {writing, output} | ({reading} if stderr == "full pipe" else set()):
            os.close(descriptor)


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while os.write(pipe, b"x"):
            pass
    except BlockingIOError:
        os.set_blocking(pipe, True)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_f82_a_dsn_in_the_place_of_something_else_does_not_show_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("PGSCHED_DEBUG", debug)
    assert main(["run", "postgresql://me:s3cr3t@host/db"]) == 2
    err = capsys.readouterr().err
    assert "must be module:attribute" in err
    assert ("Traceback" in err) is (debug == "1")
    assert "s3cr3t" not in err
    assert "me:***@host" in err
