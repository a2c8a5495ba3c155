"""``pgsched migrate`` and ``pgsched check``: get the database ready, and say what is wrong with it."""

import asyncio
from typing import TYPE_CHECKING

import click

from pgsched.cli.database import Database, database_options
from pgsched.cli.options import Checked, command, json_option, option, setting
from pgsched.cli.output import counted, print_json
from pgsched.config import MAX_PARTITIONS, Settings
from pgsched.errors import ExitCode, PgschedError
from pgsched.quantities import parse_number

if TYPE_CHECKING:
    from pgsched.pool.pool import PoolSettings


@command("migrate", examples="pgsched migrate --dsn postgresql://owner@db/work\npgsched migrate --partitions 4")
@option(
    "--partitions",
    metavar="N",
    type=Checked(lambda text, shown: parse_number(text, shown, 1, MAX_PARTITIONS)),
    environment=False,
    help=f"Split the live tasks into partitions, 1 to {MAX_PARTITIONS}; 1 is one table.  [default: as they are]",
)
@database_options
def migrate(partitions: int | None, database: Database) -> None:
    """Create the tables, or bring them up to date.

    Safe to run twice, and from two hosts at once. A table scheduled_tasks that was made after the article is
    adopted with its rows.

    With --partitions, all live tasks are moved in one transaction, in which nobody else can use the table.
    """
    from pgsched.store import schema

    for line in schema.migrate(database.open(migrate=False), database.timeout, partitions):
        click.echo(line)


@command("check", examples="pgsched check examples.archive:app")
@click.argument("app", metavar="[APP]", required=False)
@setting("boot_timeout", "SECONDS", "The import of APP may take so long.", checked=True)
@setting("start_method", "forkserver|spawn", "How a worker is started to import it.", checked=True)
@json_option
@database_options
def check(app: str | None, boot_timeout: float, start_method: str, as_json: bool, database: Database) -> int:
    """Say what is wrong with server, rights, schema and settings; with APP, also whether workers can import it.

    Changes nothing. The exit code is 1 if anything is an error; warnings and notes leave it at 0.
    """
    from pgsched.pool.pool import PoolSettings
    from pgsched.store import check as checks

    if app is not None:
        Settings.parse(app, {})
    problems = [
        (str(found.level), found.text, found.cure)
        for found in checks.check(database.open(migrate=False), database.timeout)
    ]
    known = []
    if app is not None:
        worker = PoolSettings(app=app, processes=1, boot_timeout=boot_timeout, start_method=start_method)
        known = _import(worker, problems)
    if as_json:
        print_json(
            {
                "problems": [{"level": level, "text": text, "cure": cure} for level, text, cure in problems],
                "task_types": known,
            }
        )
    else:
        for level, text, cure in problems:
            click.echo(f"{level}: {text}; {cure}" if cure else f"{level}: {text}")
        if app is not None and known:
            click.echo(f"{app} has {counted(len(known), 'task type')}: {', '.join(known)}")
        if not problems:
            click.echo("no problems found")
    return ExitCode.INCOMPLETE if any(level == "error" for level, _, _ in problems) else ExitCode.OK


def _import(settings: "PoolSettings", problems: list[tuple[str, str, str]]) -> list[str]:
    """The task types that a real worker finds in the app."""
    from pgsched.pool.pool import Pool

    async def boot() -> list[str]:
        pool = Pool(settings, on_outcomes=lambda ended: None)
        try:
            return sorted(await pool.start())
        finally:
            await pool.stop()

    try:
        known = asyncio.run(boot())
    except PgschedError as error:
        problems.append(("error", str(error), ""))
        return []
    if not known:
        problems.append(("warning", f"{settings.app} has no tasks", "import the modules that declare them"))
    return known
