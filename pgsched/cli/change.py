"""``pgsched retry``, ``cancel`` and ``prune``: what people do to tasks by hand.

Retry and cancel want something typed that says which tasks: an id, a filter, or ``--all``. A filter in the environment
narrows the choice, but does not make one.
"""

import dataclasses
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pgsched.cli.choosing import filter_options, task_id
from pgsched.cli.database import Database, database_options
from pgsched.cli.guard import say
from pgsched.cli.options import Checked, command, json_option, option
from pgsched.cli.output import counted, print_json
from pgsched.errors import ExitCode, UsageError
from pgsched.model import Status
from pgsched.quantities import parse_seconds

if TYPE_CHECKING:
    from pgsched.store.admin import Changed, Filter


@command("retry", examples="pgsched retry 4711 4712\npgsched retry --status failed --type compress")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=Checked(task_id))
@filter_options([Status.FAILED, Status.CANCELLED])
@option("--all", "everything", is_flag=True, environment=False, help="Every failed and cancelled task.")
@json_option
@database_options
def retry(ids: tuple[int, ...], chosen: "Filter", everything: bool, as_json: bool, database: Database) -> int:
    """Queue failed and cancelled tasks again, due at once and with all their retries."""
    chosen = _chosen(ids, chosen, everything)

    from pgsched.store import admin

    with database.connect("retry") as connection:
        done = admin.retry(connection, chosen)
    return _report("queued again", done, as_json)


@command("cancel", examples="pgsched cancel 4711\npgsched cancel --queue mail --status queued")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=Checked(task_id))
@filter_options([Status.QUEUED, Status.PROCESSING])
@option("--all", "everything", is_flag=True, environment=False, help="Every queued and running task.")
@json_option
@database_options
def cancel(ids: tuple[int, ...], chosen: "Filter", everything: bool, as_json: bool, database: Database) -> int:
    """Cancel queued and running tasks; the supervisor that runs one stops it.

    Nothing that a cancelled task still does is recorded. `pgsched retry` queues it again.
    """
    chosen = _chosen(ids, chosen, everything)

    from pgsched.store import admin

    with database.connect("cancel") as connection:
        done = admin.cancel(connection, chosen)
    return _report("cancelled", done, as_json)


@command("prune", examples="pgsched prune --older-than 7d")
@option(
    "--older-than",
    metavar="AGE",
    required=True,
    type=Checked(parse_seconds),
    help="Seconds since a task's end, or like 12h, 7d.",
)
@json_option
@database_options
def prune(older_than: float, as_json: bool, database: Database) -> None:
    """Delete tasks that ended long ago, and what is recorded of their failures.

    `pgsched run --prune-older-than` does the same on a timer.
    """
    from pgsched.store import admin

    with database.connect("prune") as connection:
        dropped = admin.drop_ranges(connection, older_than)
        count = admin.prune(connection, older_than)
    if dropped.refused is not None:
        say(f"warning: {dropped.refused}")
    if as_json:
        print_json({"count": count, "dropped_about": dropped.tasks})
        return
    if dropped.tasks:
        click.echo(f"about {counted(dropped.tasks, 'task')} dropped in whole ranges")
    click.echo(f"{counted(count, 'task')} deleted")


def _chosen(ids: tuple[int, ...], chosen: "Filter", everything: bool) -> "Filter":
    """The filter with the ids, if anything was typed that says which tasks are meant."""
    source = click.get_current_context().get_parameter_source
    typed = [name for name in ("status", "task_types", "queue") if source(name) is ParameterSource.COMMANDLINE]
    if not (ids or typed or everything):
        raise UsageError("say which tasks: IDs, --status, --type, --queue, or --all")
    if everything and (ids or typed):
        raise UsageError("--all: leave it out, or all else that chooses tasks")
    return dataclasses.replace(chosen, ids=ids or None)


def _report(done_what: str, done: "Changed", as_json: bool) -> int:
    """Say what was done; a task that was left as it was makes the answer a "no"."""
    if as_json:
        print_json({"count": len(done.ids), "ids": done.ids, "left": done.left})
    else:
        click.echo(f"{counted(len(done.ids), 'task')} {done_what}")
        for number, reason in done.left.items():
            click.echo(f"task {number} left as it is: {reason}")
    return ExitCode.INCOMPLETE if done.left else ExitCode.OK
