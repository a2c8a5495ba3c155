"""``pgsched status``, ``tasks`` and ``show``: what there is, who holds it until when, and all about one task.

Reads only. The same values go into the tables and into ``--json``, where nothing is shortened.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from pgsched.cli.choosing import filter_options, task_id
from pgsched.cli.database import Database, database_options
from pgsched.cli.guard import say
from pgsched.cli.options import Checked, command, json_option, option
from pgsched.cli.output import Cell, cell_text, counted, duration, moment, print_fields, print_json, print_table, size
from pgsched.errors import ExitCode
from pgsched.model import Status
from pgsched.quantities import parse_number

if TYPE_CHECKING:
    from pgsched.store import views

ERROR_WIDTH = 60


@command("status", examples="pgsched status\npgsched status --json | jq .oldest_due")
@json_option
@database_options
def status(as_json: bool, database: Database) -> None:
    """Count the tasks by queue, type and status, and list the supervisors.

    A count with a + may be larger. OLDEST DUE is how long the oldest task that could run now has waited. BUSY is the
    share of the last minutes in which a supervisor's processes had tasks; NEEDED is how many processes those tasks keep
    busy that became due in these minutes.
    """
    from pgsched.store import views

    with database.connect("status") as connection:
        found = views.status(connection)
    if as_json:
        print_json(
            {
                "counts": [asdict(count) for count in found.counts],
                "oldest_due": found.oldest_due,
                "supervisors": [{**asdict(each), "busy": found.busy(each)} for each in found.supervisors],
                "capacity": {
                    "window": found.capacity.window,
                    "needed": found.capacity.needed,
                    "task_types": [asdict(demand) for demand in found.capacity.demands],
                },
                "ownerless": found.ownerless,
                "ended_about": found.ended_about,
                "partitions": [{"number": number, "served": served} for number, served in found.partitions.items()],
            }
        )
        return
    _print_counts(found.counts)
    click.echo()
    _print_supervisors(found)
    for number, served in found.partitions.items():
        if not served and found.supervisors:
            click.echo(f"no live supervisor serves partition {number}")
    for count in found.unserved:
        text = cell_text(f"{count.task_type} in queue {count.queue}")
        click.echo(f"no live supervisor takes tasks of type {text}")
    if found.ownerless:
        click.echo(f"{counted(found.ownerless, 'processing task')} of no registered supervisor")
    if found.supervisors and found.capacity.demands:
        click.echo()
        _print_capacity(found)


def _print_counts(counts: Sequence["views.Count"]) -> None:
    statuses = list(dict.fromkeys([*map(str, Status), *sorted(count.status for count in counts)]))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    oldest: dict[tuple[str, str], float] = {}
    for count in counts:
        key = count.queue, count.task_type
        lines.setdefault(key, {})[count.status] = f"{count.tasks:,}{'+' if count.at_least else ''}"
        if count.oldest_due is not None:
            oldest[key] = max(count.oldest_due, oldest.get(key, 0.0))
    headers = [name.upper() for name in statuses]
    print_table(
        ["QUEUE", "TYPE", *headers, "OLDEST DUE"],
        [
            [*key, *(lines[key].get(name, "0") for name in statuses), duration(oldest[key]) if key in oldest else None]
            for key in sorted(lines)
        ],
        right=headers,
    )


def _print_supervisors(found: "views.Overview") -> None:
    if not found.supervisors:
        click.echo("no supervisor is registered")
        return
    print_table(
        ["SUPERVISOR", "HOST", "PID", "PROCESSES", "BUSY", "QUEUES", "PARTITIONS", "HOLDS", "LEASE UNTIL"],
        [
            [
                str(each.id),
                each.host,
                str(each.pid),
                each.processes,
                f"{found.busy(each):.0%}",
                ", ".join(each.queues) or "all",
                ", ".join(map(str, each.partitions)) or "all",
                each.claims,
                _lease(each),
            ]
            for each in found.supervisors
        ],
        right=["BUSY"],
    )


def _print_capacity(found: "views.Overview") -> None:
    capacity = found.capacity
    click.echo(f"of the last {duration(capacity.window)}:")
    print_table(
        ["TYPE", "BECAME DUE", "ATTEMPTS", "TAKES", "NEEDED"],
        [
            [
                demand.task_type,
                demand.became_due,
                demand.attempts,
                None if demand.seconds is None else duration(demand.seconds),
                None if demand.needed is None else f"{demand.needed:,.1f}",
            ]
            for demand in capacity.demands
        ],
        right=["TAKES", "NEEDED"],
    )
    least = "at least " if any(demand.needed is None for demand in capacity.demands) else ""
    there = sum(each.processes for each in found.supervisors if each.lease_seconds > 0)
    click.echo(f"{least}{capacity.needed:,.1f} processes needed; there are {there:,}")


def _lease(supervisor: "views.Supervisor") -> str:
    left = supervisor.lease_seconds
    state = f"{duration(left)} left" if left > 0 else f"over for {duration(-left)}"
    return f"{moment(supervisor.lease_until)} ({state})"


@command("tasks", examples="pgsched tasks --status failed --limit 20\npgsched tasks --queue mail --json")
@filter_options(Status)
@option(
    "--limit",
    metavar="N",
    type=Checked(lambda text, shown: parse_number(text, shown, 1, 1_000_000)),
    default=50,
    help="At most so many.  [default: 50]",
)
@json_option
@database_options
def tasks(chosen: "views.Filter", limit: int, as_json: bool, database: Database) -> None:
    """List tasks, newest first."""
    from pgsched.store import views

    with database.connect("tasks") as connection:
        found = views.list_tasks(connection, chosen, limit)
    if as_json:
        print_json([asdict(task) for task in found])
        return
    print_table(
        ["ID", "TYPE", "QUEUE", "PRIORITY", "STATUS", "DUE", "RETRIES", "HELD BY", "ERROR"],
        [
            [
                str(task.id),
                task.task_type,
                task.queue,
                task.priority,
                task.status,
                task.run_at,
                f"{task.retry_count}/{task.max_retries}",
                _holder(task),
                _first_line(task.error),
            ]
            for task in found
        ],
        right=["ID"],
    )


def _holder(task: "views.TaskLine") -> str | None:
    if task.claimed_by is None:
        return None
    return f"{task.claimed_by} on {task.host}" if task.host is not None else str(task.claimed_by)


def _first_line(error: str | None) -> str | None:
    if error is None:
        return None
    line = error.strip().split("\n")[0]
    return line if len(line) <= ERROR_WIDTH else f"{line[: ERROR_WIDTH - 3]}..."


@command("show", examples="pgsched show 4711")
@click.argument("number", metavar="ID", type=Checked(task_id))
@json_option
@database_options
def show(number: int, as_json: bool, database: Database) -> int:
    """Show all about one task, every failed attempt included."""
    from pgsched.store import views

    with database.connect("show") as connection:
        found = views.show(connection, number)
    if found is None:
        say(f"there is no task {number}")
        return ExitCode.INCOMPLETE
    if as_json:
        shown = asdict(found)
        for name in ("payload", "result"):
            shown["task"][name] = _value(shown["task"][name])
        print_json(shown)
        return ExitCode.OK
    _print_task(found)
    for failure in found.failures:
        click.echo()
        _print_failure(failure)
    return ExitCode.OK


def _value(text: str | None) -> Any:
    """A JSON column as a value; as its text if Python refuses a number or a depth that PostgreSQL took."""
    try:
        value = None if text is None else json.loads(text)
        # What can be read may be too deep to be printed.
        json.dumps({"task": {"payload": value}}, indent=2)
    except (ValueError, RecursionError):
        return text
    return value


def _print_task(found: "views.Details") -> None:
    task = found.task
    fields: list[tuple[str, Cell]] = [
        ("id", str(task.id)),
        ("type", task.task_type),
        ("queue", task.queue),
        ("priority", task.priority),
        ("status", task.status),
        ("retries", f"{task.retry_count} of {task.max_retries}"),
        ("due", task.run_at),
        ("created", task.created_at),
        ("started", task.started_at),
        ("finished", task.finished_at),
        ("updated", task.updated_at),
        ("timeout", None if task.timeout is None else duration(task.timeout)),
        ("unique key", task.unique_key),
        ("fence", str(task.fence)),
        ("payload", "not for this role to read" if task.payload is None else task.payload),
        ("result", task.result),
        ("error", task.error_log),
    ]
    if task.status == Status.PROCESSING:
        held_by = "nobody" if task.claimed_by is None else f"supervisor {task.claimed_by}, which is not registered"
        if found.holder is not None:
            holder = found.holder
            held_by = f"supervisor {holder.id} on {holder.host} (pid {holder.pid}), lease until {_lease(holder)}"
        fields.insert(5, ("held by", held_by))
    print_fields([(name, value) for name, value in fields if value is not None])


def _print_failure(failure: "views.Attempt") -> None:
    fields: list[tuple[str, Cell]] = [
        ("attempt", str(failure.attempt)),
        ("outcome", failure.outcome),
        ("at", failure.failed_at),
        ("after", duration(failure.seconds)),
        ("supervisor", None if failure.supervisor is None else str(failure.supervisor)),
        ("exit code", failure.exit_code),
        ("signal", failure.signal),
        ("out of memory", None if failure.out_of_memory is None else ("no", "yes")[failure.out_of_memory]),
        ("CPU", None if failure.cpu_seconds is None else duration(failure.cpu_seconds)),
        ("peak memory", None if failure.peak_memory is None else size(failure.peak_memory)),
        ("error", failure.error),
        ("traceback", failure.traceback),
        ("stack", failure.stack),
        ("stderr", failure.stderr),
    ]
    print_fields([(name, value) for name, value in fields if value is not None])
