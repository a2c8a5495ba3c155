"""``pgsched run``: one supervisor, until it is told to stop.

Reads the settings, finds the database, and hands over to ``compose``. The user's module is not imported here but
in the workers, which get the current directory on their path.
"""

import asyncio
import dataclasses
import gc
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from pgsched.cli.database import Database, database_options
from pgsched.cli.guard import say
from pgsched.cli.options import Checked, all_of, command, given_as, option, setting
from pgsched.cli.output import counted
from pgsched.cli.threads import LooseThreads
from pgsched.config import MAX_PROCESSES, Settings
from pgsched.errors import DatabaseError, ExitCode, UsageError
from pgsched.quantities import available_cpus, parse_seconds

if TYPE_CHECKING:
    from psycopg import Connection

EXAMPLES = """pgsched run examples.archive:app --processes 4
PGSCHED_DSN=postgresql://queue@db/work pgsched run shop.tasks:app --queues mail,images"""

ASK_AGAIN = 1.0
"""Seconds between two attempts to reach a database that is waited for."""

run_options = all_of(
    setting("processes", "N", f"How many tasks run at once, 1 to {MAX_PROCESSES}.", default="the CPUs we may use"),
    setting("queues", "A,B", "Serve only these queues.", default="all"),
    setting("partitions", "0-3,5", "Serve only these partitions of the live tasks.", default="all"),
    setting("poll_interval", "SECONDS", "Look for due tasks at least so often."),
    setting("poll_only", None, "Do without LISTEN."),
    setting("pooled", None, "The DSN leads to a transaction pooler such as PgBouncer."),
    setting("lease", "SECONDS", "A supervisor that is silent for so long loses its tasks."),
    setting("reap_interval", "SECONDS", "Look for tasks of dead supervisors so often."),
    setting("drain_timeout", "SECONDS", "Running tasks get so long to finish after a signal."),
    setting("max_tasks_per_worker", "N", "Replace a worker after so many tasks."),
    setting("max_memory_per_worker", "SIZE", "Replace a worker that has grown beyond this."),
    setting("boot_timeout", "SECONDS", "An import of APP, or the start of a worker, may take so long."),
    setting("start_method", "forkserver|spawn", "How workers are started."),
    setting("namespace", "N", "First key of the claim's advisory locks."),
    setting("metrics_address", "HOST:PORT|none", "Where metrics and health are served."),
    setting("log_format", "text|json", "Form of the log on standard error."),
    setting("prune_older_than", "AGE|none", "Delete tasks that ended longer ago than this."),
)


def _demand_partitions(connection: "Connection[Any]", settings: Settings, shown: str) -> None:
    if not settings.partitions:
        return
    from pgsched.store import views

    there = max(len(views.partitions(connection)), 1)
    if settings.partitions[-1] >= there:
        raise UsageError(
            f"{shown} {settings.partitions[-1]}: there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'partition')}, from 0 on; `pgsched migrate --partitions` makes others"
        )


@command("run", examples=EXAMPLES)
@click.argument("app", metavar="APP")
@run_options
@option(
    "--wait-for-database",
    metavar="SECONDS",
    default="0s",
    type=Checked(lambda text, shown: parse_seconds(text, shown, 0.0, 3600.0)),
    help="At the start, wait so long for a database that cannot be reached.  [default: 0s]",
)
@database_options
@click.pass_context
def run(context: click.Context, /, app: str, database: Database, wait_for_database: float, **options: object) -> int:
    """Run the tasks of APP (module:attribute) until SIGTERM or SIGINT.

    The first signal drains: nothing new is started, running tasks may finish until --drain-timeout, and what is left
    then goes back to the queue at no cost. A second signal does that at once; the exit code is then 7.

    Durations are seconds, or like 250ms, 90s, 5m, 2h, 7d. Sizes are bytes, or like 512MiB.
    """
    names = {str(param.name): given_as(context, param) for param in context.command.params}
    settings = Settings.parse(app, options, names)
    if settings.processes > (cpus := available_cpus()):
        say(f"warning: {names['processes']} {settings.processes}, but this process may use only {cpus} CPUs")
    # Until the loop listens for it, it would end us. A handler: what is ignored stays so in programs that we start.
    signal.signal(signal.SIGHUP, lambda *_: None)
    # Nothing has begun. By default it would look like a failure, and process 1 would not even hear it.
    signal.signal(signal.SIGTERM, _leave)
    # Before anything is started and logged: what is wrong with the database is then the only line.
    with _reached(database, wait_for_database) as connection:
        _demand_partitions(connection, settings, names["partitions"])
        _warn_of_pooler(connection, settings, names["pooled"])
    settings = dataclasses.replace(settings, dsn=database.open(), db_timeout=database.timeout)

    from pgsched.cli import compose

    # The claims in hand are many, live briefly and form no cycles: to look through them all the time is for nothing.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    # From here on there is something to take apart, which what is raised anywhere would leave behind.
    stop = asyncio.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return asyncio.run(compose.run(settings, stop=stop))


def _leave(*_: object) -> None:
    raise SystemExit(ExitCode.OK)


def _reached(database: Database, patience: float) -> "Connection[Any]":
    """Connect, and try again for so many seconds where that fails."""
    until = time.monotonic() + patience
    told = False
    while True:
        try:
            return _connected(database)
        except DatabaseError as error:
            left = until - time.monotonic()
            if left <= 0:
                raise
            if not told:
                say(f"waiting {patience:g} s for the database: {error}")
                told = True
        time.sleep(min(ASK_AGAIN, left))


def _connected(database: Database) -> "Connection[Any]":
    """Connect in a thread: whoever waits for a name server hears no signal."""
    from pgsched.store.passwords import passwords

    # Here: the embedded server lives as long as the command, which other threads do not know.
    database.open()
    try:
        return LooseThreads().submit(database.connect, "run").result()
    except (SystemExit, KeyboardInterrupt):
        # What makes the password would go on.
        if source := passwords():
            source.give_up()
        raise


def _warn_of_pooler(connection: "Connection[Any]", settings: Settings, option: str) -> None:
    """Not more than a warning: one that pools sessions needs no option."""
    from pgsched.store.pooler import is_pooled

    if not settings.pooled and is_pooled(connection):
        say(
            "warning: the DSN leads to a connection pooler; if that pools transactions, as PgBouncer's "
            f"pool_mode=transaction does, tasks will fail to be claimed: give {option}"
        )
