"""``pgsched demo``: all of it on real input, with nothing set up.

Every regular file of a directory becomes a task that compresses it, in a queue of its own, so that a demo never
touches anybody's tasks. The supervisor is the one that ``pgsched run`` starts. What is printed at the end was read
back from the table.
"""

import asyncio
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pgsched.cli.database import Database, database_options
from pgsched.cli.files import Found, collect, standard_library
from pgsched.cli.guard import INTERRUPTED, say
from pgsched.cli.options import command, setting
from pgsched.cli.output import Cell, cell_text, print_fields, size
from pgsched.cli.progress import Progress
from pgsched.config import MAX_PROCESSES, Settings
from pgsched.dsn import LIBPQ_VARIABLES
from pgsched.errors import ExitCode
from pgsched.model import NewTask, Status
from pgsched.quantities import available_cpus
from pgsched.rules.payload import check_payload

if TYPE_CHECKING:
    from pgsched.store.results import Result

EXAMPLES = """pgsched demo
pgsched demo ~/Pictures --processes 2"""

APP = "pgsched.demo:app"
TASK_TYPE = "pgsched.demo.compress"
SHOWN_FAILURES = 5


@command("demo", examples=EXAMPLES)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@setting("processes", "N", f"Files at once, 1 to {MAX_PROCESSES}.", default="the CPUs we may use", checked=True)
@database_options
def demo(directory: Path | None, processes: int | None, database: Database) -> int:
    """Compress every file of DIRECTORY, one task each, and show what it took.

    DIRECTORY is searched with everything below it; without one, Python's own standard library is taken. The files are
    only read. Nothing has to be set up: unless --dsn or PGSCHED_DSN names a database, the embedded server is used,
    whatever libpq's environment says.
    """
    found = standard_library() if directory is None else collect(directory)
    if found.passed_over:
        say(f"{found.passed_over} files or directories cannot be read and are left out")
    if not database.given:
        # They would send a connection that is meant for the embedded server elsewhere.
        for variable in LIBPQ_VARIABLES:
            os.environ.pop(variable, None)
    settings = Settings(
        app=APP,
        processes=processes or available_cpus(),
        queues=(f"demo-{secrets.token_hex(4)}",),
        dsn=database.open(),
        db_timeout=database.timeout,
        metrics_address=None,
        drain_timeout=5.0,
    )
    say(f"compressing {len(found.files):,} files of {found.directory} in {settings.processes} processes")
    return _run(settings, found, database)


def _run(settings: Settings, found: Found, database: Database) -> int:
    from pgsched.store import admin, enqueue
    from pgsched.store.results import results

    rows = [
        NewTask(TASK_TYPE, check_payload({"path": path}), queue=settings.queues[0], max_retries=1)
        for path in found.files
    ]
    with database.connect("demo") as connection:
        ids = enqueue.insert(connection, rows)
    progress = Progress(len(ids), settings.processes, sys.stderr)
    started = time.monotonic()
    try:
        asyncio.run(_supervise(settings, progress))
    finally:
        seconds = time.monotonic() - started
        with database.connect("demo") as connection:
            stopped = admin.cancel(connection, admin.Filter(ids=ids))
            ended = results(connection, ids)
    done = [_Compressed.read(task) for task in ended if task.status == Status.COMPLETED]
    _print_summary(done, [task for task in ended if task.status == Status.FAILED])
    click.echo(f"completed {len(done)} of {len(ids)} tasks in {seconds:.1f} s")
    if stopped.ids and not progress.finished.is_set():
        return INTERRUPTED
    return ExitCode.OK if len(done) == len(ids) else ExitCode.INCOMPLETE


async def _supervise(settings: Settings, progress: Progress) -> None:
    from pgsched.cli import compose

    showing = asyncio.create_task(progress.show())
    try:
        await compose.run(settings, level=logging.ERROR, on_outcome=progress.on_outcome, stop=progress.finished)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


class _Compressed(NamedTuple):
    path: str
    bytes_in: int
    bytes_out: int
    cpu_seconds: float

    @classmethod
    def read(cls, task: "Result") -> "_Compressed":
        """What a completed task was given, and what it has returned."""
        return cls(path=json.loads(task.payload)["path"], **json.loads(task.result or "{}"))


def _print_summary(done: Sequence[_Compressed], failed: Sequence["Result"]) -> None:
    bytes_in, bytes_out = sum(each.bytes_in for each in done), sum(each.bytes_out for each in done)
    fields: list[tuple[str, Cell]] = [
        ("files", len(done)),
        ("bytes in", f"{bytes_in:,} ({size(bytes_in)})"),
        ("bytes out", f"{bytes_out:,} ({size(bytes_out)})"),
        ("ratio", f"{bytes_in / bytes_out:.2f}" if bytes_out else None),
        ("CPU seconds", sum(each.cpu_seconds for each in done)),
    ]
    slowest = sorted(done, key=lambda each: each.cpu_seconds, reverse=True)[:3]
    fields += [
        ("slowest" if turn == 0 else "", f"{each.cpu_seconds:.2f} s  {each.path}") for turn, each in enumerate(slowest)
    ]
    print_fields(fields)
    for task in failed[:SHOWN_FAILURES]:
        click.echo(f"failed: {cell_text(task.payload)}: {cell_text((task.error or '').splitlines()[0])}")
    if len(failed) > SHOWN_FAILURES:
        click.echo(f"failed: {len(failed) - SHOWN_FAILURES} more")
