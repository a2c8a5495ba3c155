"""``python -m benchmarks SCENARIO|list|all|report``: measures on the embedded server or on ``--dsn``.

Prints medians and spread; ``--json`` keeps them for ``report``. Ctrl-C and SIGTERM end it in order: processes are
stopped, the schema is dropped, and an embedded server is removed.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import click
import psycopg

from benchmarks.registry import SCENARIOS
from benchmarks.running import Request, Session, described, tell
from benchmarks.scenario import Unavailable
from benchmarks.server import server
from pgsched.errors import ExitCode, PgschedError, UsageError
from pgsched.store.redaction import one_line, redact

FAILED, USAGE = 1, 2
PARAMS = ("tasks", "rate", "seconds", "minutes")
OPTIONS = (
    click.option("--dsn", metavar="DSN", help="The server to measure.  [default: an embedded one of its own]"),
    click.option(
        "--json",
        "json_path",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="Keep the figures here: a file, or a directory.",
    ),
    click.option("--repeat", metavar="N", type=click.IntRange(1), help="Runs.  [default: 1 to 3, with --quick 1]"),
    click.option("--quick", is_flag=True, help="Small sizes: only to see that it runs."),
    click.option("--processes", metavar="N", default=2, show_default=True, type=click.IntRange(1), help="Workers."),
    click.option("--tasks", metavar="N", type=click.IntRange(1), help="Where a scenario has a number of tasks."),
    click.option("--rate", metavar="N", type=click.FloatRange(0, min_open=True), help="Tasks a second: paced, soak."),
    click.option(
        "--seconds", metavar="N", type=click.FloatRange(0, min_open=True), help="How long: paced, claim, enqueue."
    ),
    click.option("--minutes", metavar="N", type=click.FloatRange(0, min_open=True), help="How long: soak."),
)


class InOrder(click.Group):
    """Lists its commands as they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def commands() -> None:
    """Measure pgsched. Exit codes: 1 a scenario failed, 2 wrong usage or a refusal, 3 no database."""


@commands.command("list")
def list_scenarios() -> None:
    """Name the scenarios."""
    for name, entry in SCENARIOS.items():
        click.echo(f"{name:10} {entry.about}")


@commands.command("report")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to", "directory", metavar="DIR", default="benchmark-report", show_default=True, type=click.Path(path_type=Path)
)
def write_report(paths: tuple[Path, ...], directory: Path) -> None:
    """Draw plots and write a page from what --json has kept: files, or directories of such."""
    from benchmarks.report import report

    click.echo(report(paths, directory))


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all scenarios share."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@commands.command("all")
@with_options
def run_all(json_path: Path | None, **options: Any) -> int:
    """Run every scenario but those that take very long; --json names a directory, which gets a file for each.

    With --quick, those too.
    """
    _prepare(json_path)
    with server(options["dsn"]) as measured:
        session = Session(measured, _request(**options))
        failed = session.measure_all(json_path)
    if failed:
        tell(f"{len(failed)} scenarios failed: {', '.join(failed)}")
    return FAILED if failed else 0


def add_scenario(group: click.Group, name: str, about: str) -> None:
    """Give a scenario a command of its own."""

    @group.command(name, help=f"{about[0].upper()}{about[1:]}.")
    @with_options
    def run_one(json_path: Path | None, **options: Any) -> int:
        if json_path and json_path.is_dir():
            json_path /= f"{name}.json"
        _prepare(json_path and json_path.parent)
        with server(options["dsn"]) as measured:
            session = Session(measured, _request(**options))
            session.measure(name, json_path)
        return 0


def _prepare(directory: Path | None) -> None:
    """See that figures can be kept, before hours are spent on them."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json: {directory} cannot be made: {error.strerror}") from None
    if not os.access(directory, os.W_OK):
        raise UsageError(f"--json: {directory} cannot be written to")


def _request(*, repeat: int | None, quick: bool, processes: int, **others: Any) -> Request:
    params = {name: float(others[name]) for name in PARAMS if others[name] is not None}
    return Request(repeat=repeat, quick=quick, processes=processes, params=params)


for _name, _entry in SCENARIOS.items():
    add_scenario(commands, _name, _entry.about)


def main() -> int:
    """Run the command line; every end is an exit code and at most one line."""
    _end_in_order()
    try:
        return int(commands.main(prog_name="python -m benchmarks", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except Unavailable as error:
        tell(one_line(error))
        return USAGE
    except PgschedError as error:
        tell(one_line(error))
        return error.exit_code
    except Exception as error:
        tell(described(error))
        if os.environ.get("PGSCHED_DEBUG") == "1":
            click.echo(redact(traceback.format_exc()), err=True, nl=False)
        return ExitCode.DATABASE if isinstance(error, psycopg.OperationalError) else FAILED


def _end_in_order() -> None:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an exception; later ones must not cut the tidying short."""
    ending = False

    def end(number: int, _: FrameType | None) -> None:
        nonlocal ending
        if ending:
            return
        ending = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


if __name__ == "__main__":
    sys.exit(main())
