"""``pgsched scale``: how many tasks running supervisors execute at once, asked for from any host."""

import functools
from dataclasses import asdict

import click

from pgsched.cli.database import Database, database_options
from pgsched.cli.guard import say
from pgsched.cli.options import Checked, command, json_option, option
from pgsched.cli.output import cell_text, print_json
from pgsched.config import read
from pgsched.errors import ExitCode, UsageError


def _names(text: str, shown: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or not text.isprintable():
        raise UsageError(f"{shown} {text!r}: must be hosts or numbers of supervisors, like web-1,4711")
    return list(dict.fromkeys(names))


@command("scale", examples="pgsched scale 8\npgsched scale 2 --supervisor web-1")
@click.argument("processes", metavar="N", type=Checked(functools.partial(read, "processes")))
@option(
    "--supervisor",
    "names",
    metavar="A,B",
    type=Checked(_names),
    help="Only these: hosts, or numbers of `pgsched status`.  [default: all that live]",
)
@json_option
@database_options
def scale(processes: int, names: list[str] | None, as_json: bool, database: Database) -> int:
    """Have running supervisors execute N tasks at once.

    New processes start at once; those that are too many end with their tasks. It holds until the supervisor's end: when
    it is started again, its --processes counts.
    """
    from pgsched.store import admin

    with database.connect("scale") as connection:
        found = admin.scale(connection, processes, names)
    unknown = [name for name in names or () if not any(name in (each.host, str(each.id)) for each in found)]
    if as_json:
        print_json({"processes": processes, "supervisors": [asdict(each) for each in found], "unknown": unknown})
    else:
        for each in found:
            who = cell_text(f"supervisor {each.id} on {each.host} (pid {each.pid})")
            had = "has them already" if each.before == processes else f"has {each.before:,}"
            click.echo(f"{who} asked for {processes:,} process{'' if processes == 1 else 'es'}; it {had}")
    for name in unknown:
        say(f"there is no live supervisor {name}")
    if not found and not unknown:
        say("there is no live supervisor")
    return ExitCode.INCOMPLETE if unknown or not found else ExitCode.OK
