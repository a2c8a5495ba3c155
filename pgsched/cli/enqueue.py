"""``pgsched enqueue``: one task from the command line, committed when the id is printed.

The command knows no App: queue, priority and retries have plain defaults here, and whether the payload fits the
function shows when the task runs.
"""

import json
import sys
from datetime import datetime

import click

from pgsched.cli.database import Database, database_options
from pgsched.cli.options import Checked, command, json_option, option
from pgsched.cli.output import print_json
from pgsched.errors import UsageError
from pgsched.model import NewTask
from pgsched.options import check_key, parse_delay, parse_retries, parse_timeout
from pgsched.quantities import check_name, parse_priority
from pgsched.rules.payload import PAYLOAD_LIMIT, check_payload

EXAMPLES = """pgsched enqueue compress '{"path": "a.txt"}' --delay 10m
pgsched enqueue report --run-at 2030-01-31T06:00:00+01:00 --priority 5
generate-payload | pgsched enqueue compress - --queue archive"""


def read_moment(text: str, option: str) -> datetime:
    """Read a point in time that means the same on every host.

    :raises UsageError: it is no ISO 8601 date and time, or has no time zone.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r}: must be a date and time like 2030-01-31T06:00:00+01:00") from None
    if moment.tzinfo is None:
        raise UsageError(f"{option} {text!r}: needs a time zone: append Z for UTC, or an offset like +01:00")
    return moment


@command("enqueue", examples=EXAMPLES)
@click.argument("task_type", metavar="TYPE")
@click.argument("payload", metavar="[JSON]", default="{}")
@option("--run-at", metavar="TIME", type=Checked(read_moment), help="Not before this time (ISO 8601 with a zone).")
@option(
    "--delay",
    metavar="SECONDS",
    type=Checked(parse_delay),
    help="Not before so long from now: seconds, or like 90s, 5m, 7d.",
)
@option(
    "--queue",
    metavar="NAME",
    type=Checked(lambda text, shown: check_name(shown, text)),
    default="default",
    help="The queue to wait in.  [default: default]",
)
@option(
    "--priority",
    metavar="N",
    type=Checked(parse_priority),
    default=0,
    help="-32768 to 32767, higher first.  [default: 0]",
)
@option(
    "--max-retries",
    metavar="N",
    type=Checked(parse_retries),
    default=3,
    help="Try again at most so often.  [default: 3]",
)
@option(
    "--timeout",
    metavar="SECONDS",
    type=Checked(parse_timeout),
    help="Stop an attempt after so long.  [default: the task type's]",
)
@option(
    "--unique-key",
    metavar="KEY",
    type=Checked(check_key),
    environment=False,
    help="If a task with this key is queued or running, print its id and add none.",
)
@json_option
@database_options
def enqueue(
    database: Database,
    task_type: str,
    payload: str,
    run_at: datetime | None,
    delay: float | None,
    queue: str,
    priority: int,
    max_retries: int,
    timeout: float | None,
    unique_key: str | None,
    as_json: bool,
) -> None:
    """Add a task of TYPE and print its id.

    JSON is an object with the task's keyword arguments; - reads it from standard input.
    """
    check_name("TYPE", task_type)
    if run_at is not None and delay is not None:
        raise UsageError("--run-at and --delay: give one of them, not both")
    text = check_payload(_read_json(payload))
    task = NewTask(
        task_type,
        text,
        queue=queue,
        priority=priority,
        max_retries=max_retries,
        run_at=run_at,
        delay=delay or 0.0,
        timeout=timeout,
        unique_key=unique_key,
    )

    from pgsched.store.enqueue import insert

    with database.connect("enqueue") as connection:
        (task_id,) = insert(connection, [task])
    if as_json:
        print_json({"id": task_id})
    else:
        click.echo(task_id)


def _read_json(text: str) -> object:
    if text == "-":
        # One byte over the limit is enough to see that it is too much.
        data = sys.stdin.buffer.read(PAYLOAD_LIMIT + 1)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"payload is not UTF-8 at byte {error.start}") from None
        if len(data) > PAYLOAD_LIMIT:
            raise UsageError(f"payload must be at most {PAYLOAD_LIMIT:,} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"payload {_shortened(text)} is not JSON: {reason}") from None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
