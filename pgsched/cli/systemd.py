"""``pgsched systemd``: makes a service of systemd's out of ``pgsched run``, as files for it, or to look at.

Writes two files and starts nothing: what has to be done then, it says. Neither of them is written over when somebody
has changed it.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from pgsched.cli.options import Checked, Group, Option, all_of, command, given_as, option, setting
from pgsched.cli.run import run, run_options
from pgsched.config import Settings
from pgsched.errors import UsageError
from pgsched.ops.unit import Service, environment

EXAMPLES = """pgsched systemd install shop.tasks:app --processes 4 --directory /srv/shop
pgsched systemd install shop.tasks:app --instance mail --queues mail --metrics-address 127.0.0.1:9809
pgsched systemd show shop.tasks:app"""

INSTALL = """pgsched systemd install shop.tasks:app --processes 4 --directory /srv/shop
pgsched systemd install shop.tasks:app --instance mail --queues mail --metrics-address 127.0.0.1:9809
pgsched systemd install shop.tasks:app --root /tmp/try"""

_INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}", re.ASCII)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?", re.ASCII)


def _like(expression: "re.Pattern[str]", what: str) -> Checked:
    def read(text: str, shown: str) -> str:
        if not expression.fullmatch(text):
            raise UsageError(f"{shown} {text!r}: must be {what}")
        return text

    return Checked(read)


def _absolute(text: str, shown: str) -> str:
    if not text.startswith("/") or not text.isprintable():
        raise UsageError(f"{shown} {text!r}: must be an absolute path of printable characters")
    return text


_options = all_of(
    option(
        "--instance",
        metavar="NAME",
        type=_like(_INSTANCE, "letters, digits and _ . : -, like mail"),
        environment=False,
        help="Make it pgsched@NAME, one of several that share a unit.",
    ),
    option(
        "--user",
        metavar="USER",
        default="pgsched",
        type=_like(_USER, "the name of a user"),
        environment=False,
        help="Run as this user.  [default: pgsched]",
    ),
    option(
        "--directory",
        metavar="DIRECTORY",
        type=Checked(_absolute),
        environment=False,
        help="The workers start and import APP there.  [default: this directory]",
    ),
    option(
        "--program",
        metavar="PATH",
        type=Checked(_absolute),
        environment=False,
        help="The program pgsched.  [default: this one]",
    ),
    option(
        "--dsn",
        metavar="DSN",
        help="The database; its password belongs into /etc/pgsched/pg_service.conf.  [default: set it in the file]",
    ),
    run_options,
    setting("db_timeout", "SECONDS", "Deadline of every database call."),
)


@click.group("systemd", cls=Group, examples=EXAMPLES)
def systemd() -> None:
    """Make a service of systemd's that runs a supervisor."""


@command("install", examples=INSTALL)
@click.argument("app", metavar="APP")
@option(
    "--root",
    metavar="DIRECTORY",
    default="/",
    type=click.Path(file_okay=False, path_type=Path),
    environment=False,
    help="Write below this directory, to try it.  [default: /]",
)
@option("--force", is_flag=True, environment=False, help="Write over files that are there and differ.")
@_options
@click.pass_context
def install(context: click.Context, /, root: Path, force: bool, **given: Any) -> None:
    """Write a unit that runs APP (module:attribute), and its environment file.

    The options are those of `pgsched run`; those that are given, here or as a variable, go into the environment file.
    Files that are there and differ are left alone, unless --force is given. Nothing is started.
    """
    service, text, instance = _asked_for(context, **given)
    files = {service.path: (service.text(), 0o644), service.environment_path(instance): (text, 0o600)}
    targets = {root / path.relative_to("/"): content for path, content in files.items()}
    if not force:
        for path, (content, _) in targets.items():
            if _differs(path, content):
                raise UsageError(
                    f"{path} is there and differs: compare it with `pgsched systemd show`, or give --force"
                )
    for path, (content, mode) in targets.items():
        _write(path, content, mode)
        click.echo(f"wrote {path}")
    name = f"pgsched@{instance}" if instance else "pgsched"
    click.echo(f"to start it: systemctl daemon-reload && systemctl enable --now {name}")


@command("show", examples="pgsched systemd show shop.tasks:app --processes 4")
@click.argument("app", metavar="APP")
@_options
@click.pass_context
def show(context: click.Context, /, **given: Any) -> None:
    """Print what `pgsched systemd install` would write."""
    service, text, instance = _asked_for(context, **given)
    for path, content in ((service.path, service.text()), (service.environment_path(instance), text)):
        click.echo(f"# {path}\n{content}")


def _asked_for(
    context: click.Context,
    *,
    app: str,
    instance: str | None,
    user: str,
    directory: str | None,
    program: str | None,
    dsn: str | None,
    **options: Any,
) -> tuple[Service, str, str | None]:
    """The service, its environment file, and the instance's name.

    :raises UsageError: the first value that is wrong.
    """
    named = {str(param.name): given_as(context, param) for param in context.command.params}
    settings = Settings.parse(app, options if dsn is None else {**options, "dsn": dsn}, named)
    values = {name: _text(value) for name, value in options.items() if value is not None}
    if dsn is not None:
        values["dsn"] = dsn
    for name, value in values.items():
        if not value.isprintable():
            raise UsageError(f"{named[name]} {value!r}: must be printable")
    directory = directory or _here()
    words = (program,) if program else _this_program()
    service = Service(
        user=user,
        directory=directory,
        command=words,
        behind=(os.path.realpath(directory), *_behind(words[0])),
        db_timeout=settings.db_timeout,
        boot_timeout=settings.boot_timeout,
        drain_timeout=settings.drain_timeout,
        template=instance is not None,
    )
    variables = {f"PGSCHED_{name.upper()}": value for name, value in values.items()}
    return service, environment(app, variables, _known()), instance


def _here() -> str:
    try:
        return _absolute(os.getcwd(), "this directory")
    except OSError as error:
        raise UsageError(f"--directory: this one cannot be found: {error.strerror}") from None


def _behind(program: str) -> list[str]:
    """What a program needs to be started: itself and its interpreter, with no links on the way.

    A virtual environment's Python is a link to one that often lies under somebody's home.
    """
    found = [os.path.realpath(program)]
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return found  # not there yet, or not for us to read
    if first.startswith(b"#!") and (words := first[2:].split()):
        found.append(os.path.realpath(os.fsdecode(words[0])))
    return found


def _this_program() -> tuple[str, ...]:
    beside = Path(sys.executable).with_name("pgsched")
    return (str(beside),) if beside.is_file() else (sys.executable, "-m", "pgsched")


def _known() -> list[tuple[str, str, str]]:
    """Every variable of ``pgsched run`` that may stand in the file: name, default and meaning."""
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    return [
        (param.variable, _shown(defaults.get(str(param.name))), str(param.help).split("  [")[0])
        for param in run.params
        if isinstance(param, Option) and param.name not in ("no_embedded", "wait_for_database")
    ]


def _shown(default: object) -> str:
    if default in (None, (), dataclasses.MISSING):
        return ""
    return _text(default)


def _text(value: object) -> str:
    """A value as its variable has it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _differs(path: Path, content: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") != content
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, UnicodeDecodeError):
        return True


def _write(path: Path, content: str, mode: int) -> None:
    """Write a file whole, with its rights from the first moment on: it may hold a password.

    :raises UsageError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode()
    made = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        made = True
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        if made:
            beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


systemd.add_command(install)
systemd.add_command(show)
