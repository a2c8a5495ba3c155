"""The entry point of ``pgsched``: reads the command line, and has ``guard`` turn whatever happens into an exit code."""

import os
import sys
from collections.abc import Sequence

import click

from pgsched.cli.guard import guarded
from pgsched.errors import ExitCode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises but for SystemExit.

    :param arguments: without the program's name; default ``sys.argv[1:]``.
    """
    # One that was closed before we started would be a socket's by and by, and get what workers print.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A locale that cannot show a character must not end a command that has done its work.
            stream.reconfigure(errors="backslashreplace")
    return guarded(lambda: _invoke(list(sys.argv[1:] if arguments is None else arguments)))


def _invoke(arguments: list[str]) -> int:
    from pgsched.cli.commands import pgsched

    if not arguments:
        with pgsched.make_context("pgsched", [], resilient_parsing=True) as context:
            click.echo(context.get_help(), err=True)
        return ExitCode.USAGE
    with pgsched.make_context("pgsched", arguments) as context:
        return int(pgsched.invoke(context) or 0)
