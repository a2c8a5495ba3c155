"""Every command explains itself, and every option has its variable."""

import click
import pytest

from pgsched.cli.commands import pgsched
from pgsched.cli.main import main
from pgsched.cli.options import Option

COMMANDS = list(pgsched.commands)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], name: str, flag: str) -> None:
    assert main([name, flag]) == 0
    out = capsys.readouterr().out
    assert "\nExamples:\n  " in out
    assert f"pgsched {name}" in out.split("Examples:")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_and_names_its_variable(capsys: pytest.CaptureFixture[str], name: str) -> None:
    main([name, "--help"])
    out = " ".join(capsys.readouterr().out.split())
    for param in pgsched.commands[name].params:
        if isinstance(param, click.Option):
            assert isinstance(param, Option)
            assert param.help
            typed_only = param.envvar is None
            assert typed_only or param.envvar == f"PGSCHED_{param.opts[0][2:].replace('-', '_').upper()}"
            assert typed_only or f"[env var: {param.envvar}" in out


def test_the_group_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "..." not in out.split("Commands:")[1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pgsched ")
