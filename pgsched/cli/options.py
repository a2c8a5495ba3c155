"""What the commands share: the command class, environment variables for options, and common options.

An option ``--poll-interval`` is also ``PGSCHED_POLL_INTERVAL``, under that one name for every command. A variable
that is set but empty is an error and not a default: a deployment whose value got lost should not run on another.
Options that guard against mistakes (``--all``) can only be typed.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from pgsched.config import Settings, option_name, read
from pgsched.errors import UsageError
from pgsched.quantities import format_seconds

PREFIX = "PGSCHED"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_YES_OR_NO = frozenset({"1", "0", "true", "false", "yes", "no", "on", "off"})
_DEFAULTS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Settings)
}

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option that is also an environment variable, whichever command it belongs to.

    :param environment: False: it can only be typed.
    """

    def __init__(self, *args: Any, environment: bool = True, **kwargs: Any) -> None:
        kwargs["show_envvar"] = environment
        super().__init__(*args, **kwargs)
        self.variable = f"{PREFIX}_{self.opts[0].lstrip('-').replace('-', '_').upper()}"
        if environment:
            self.envvar = self.variable

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The variable's value, None when it is not set; an empty one goes on to whoever checks the value.

        :raises UsageError: it stands for a flag, and is neither yes nor no.
        """
        value = os.environ.get(self.variable) if self.envvar else None
        if value is not None and self.is_flag and value.lower() not in _YES_OR_NO:
            raise UsageError(f"{self.variable} {value!r}: must be 1 or 0, true or false, yes or no, on or off")
        return value


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic to mypy, but not at run time before click 8.3
    """A value that one of :mod:`pgsched.quantities`' readers checks; it refuses in its own words."""

    name = "text"

    def __init__(self, reader: Callable[[str, str], Any]) -> None:
        self._reader = reader

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read text; a default is in its own type already."""
        if not isinstance(value, str) or param is None or ctx is None:
            return value
        return self._reader(value, given_as(ctx, param))


def given_as(ctx: click.Context, param: click.Parameter) -> str:
    """What a message should call a parameter: the option, or the variable if its value comes from there."""
    if isinstance(param, Option):
        from_environment = ctx.get_parameter_source(str(param.name)) is ParameterSource.ENVIRONMENT
        return param.variable if from_environment else param.opts[0]
    return str(param.human_readable_name).strip("[.]")


class WithExamples(click.Command):
    """Has examples below its options."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        kwargs["context_settings"] = CONTEXT
        super().__init__(*args, **kwargs)
        self.examples = examples

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first clause of the help, and all of it: the list of commands has lines enough."""
        return " ".join(re.split(r"[;.]\s", f"{self.help} ", maxsplit=1)[0].split())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they would be typed."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Command(WithExamples):
    """A command."""


class Group(WithExamples, click.Group):
    """Lists its commands in the order in which they were added: that of a first use, not of the alphabet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A missing command is told in one line, as a missing argument is.
        super().__init__(*args, no_args_is_help=False, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(self.commands)


def command(name: str, *, examples: str) -> Callable[[Callable[..., Any]], Command]:
    """``click.command`` with our class."""
    return click.command(name, cls=Command, examples=examples)


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """``click.option`` with our class."""
    return click.option(*names, cls=Option, **attributes)


def setting(
    name: str, metavar: str | None, text: str, *, default: str | None = None, checked: bool = False
) -> Callable[[F], F]:
    """An option for a field of :class:`Settings`; the help shows the field's default.

    :param metavar: None: it is a flag.
    :param checked: the command gets the field's value; else what was given, for :meth:`Settings.parse` to check.
    """
    if metavar is None:
        return option(option_name(name), is_flag=True, default=None, help=text)
    shown = default or _shown(_DEFAULTS[name])
    kind = {"type": Checked(functools.partial(read, name)), "default": _DEFAULTS[name]} if checked else {}
    return option(option_name(name), metavar=metavar, help=f"{text}  [default: {shown}]", **kind)


def all_of(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator of several, in the order of the help text."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def json_option(function: F) -> F:
    """``--json``."""
    return option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def _shown(default: object) -> str:
    match default:
        case None:
            return "none"
        case float():
            return format_seconds(default)
    return str(default)
