"""What ends a command: every error becomes one line on standard error and an exit code.

Runs in the process that the user started. A traceback is shown only with ``PGSCHED_DEBUG=1``, and whatever
is shown has had its passwords taken out first, because a DSN may stand in any argument or message.
"""

import os
import select
import sys
import traceback
from collections.abc import Callable

import click

from pgsched.errors import ExitCode, PgschedError
from pgsched.store.redaction import redact

INTERNAL = 70
"""An error that nobody foresaw (``EX_SOFTWARE``)."""
OUTPUT = 74
"""What the command had to print could not be written (``EX_IOERR``)."""
BROKEN_PIPE = 141
"""The reader of our output went away: 128 + SIGPIPE, as for any other program."""
INTERRUPTED = 130
"""Ended by Ctrl-C: 128 + SIGINT."""

PATIENCE = 5.0
"""Seconds in which whoever reads standard error must take something, or a line is dropped."""

DEBUG = "PGSCHED_DEBUG"
_LONGEST = 2000


def guarded(body: Callable[[], int]) -> int:
    """Run ``body`` and return the exit code; nothing that it raises gets past, except SystemExit."""
    try:
        return _flushed(body())
    except click.exceptions.Exit as ending:
        return _flushed(ending.exit_code)
    except click.ClickException as error:
        say(_usage(error))
        return ExitCode.USAGE
    except PgschedError as error:
        say(str(error))
        _debug(error.details)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _abandon(1)
        return BROKEN_PIPE
    except Exception as error:
        # Whatever is printed is written at once; what could not be is still there, and fails again.
        if isinstance(error, OSError) and (code := _flushed(ExitCode.OK)) != ExitCode.OK:
            return code
        say(f"internal error: {type(error).__name__}: {error} ({DEBUG}=1 shows where)")
        _debug()
        return INTERNAL


def say(text: str) -> None:
    """Print one ``pgsched: ...`` line on standard error, if that takes it: the end must come, with its exit code."""
    try:
        if _takes_more():
            click.echo(f"pgsched: {one_line(text)}", err=True)
    except OSError:
        # Its reader has gone, or the disk is full.
        _abandon(2)


def one_line(text: str) -> str:
    """The text without passwords, line breaks or control characters, and not longer than a screen."""
    joined = " ".join(redact(text).split())
    clean = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in joined)
    return clean if len(clean) <= _LONGEST else f"{clean[:_LONGEST]}..."


def _usage(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else ""
    return f"{message} (see `{path} --help`)" if path else message


def _debug(details: str = "") -> None:
    """Show where it happened: in the user's module, where that is to blame."""
    if os.environ.get(DEBUG) == "1":
        click.echo(redact(details or traceback.format_exc()), err=True, nl=False)


def _flushed(code: int) -> int:
    """The exit code, or another if what was printed cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon(1)
        return BROKEN_PIPE
    except OSError as error:
        _abandon(1)
        say(f"cannot write the output: {error.strerror}")
        return OUTPUT
    return code


def _takes_more() -> bool:
    """Whether standard error is no pipe that is full and stays so."""
    try:
        return bool(select.select([], [sys.stderr], [], PATIENCE)[1])
    except (OSError, TypeError, ValueError):
        # It is closed, or no file.
        return True


def _abandon(descriptor: int) -> None:
    """Point what is broken at nothing, or the interpreter complains when it flushes at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
