"""What an operator does: retry, cancel and prune tasks, scale supervisors; what he sees is in ``views``.

Everything works in batches, each a short transaction that locks tasks in the order of their ids, and is tried again
quietly when it meets a conflict. What was done stays done if a later batch fails. Runs in the command line.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import psycopg

from pgsched.errors import PgschedError
from pgsched.model import Status
from pgsched.store.line import CONFLICTS
from pgsched.store.refusals import refusals, retried
from pgsched.store.statements import rows, run
from pgsched.store.views import Filter, iso_dates, list_tasks, parameters, show, status

__all__ = ["Changed", "Filter", "cancel", "drop_ranges", "list_tasks", "prune", "retry", "scale", "show", "status"]

BATCH: Final = 1000
_LIVE: Final = (Status.QUEUED, Status.PROCESSING)
_RETRIABLE: Final = (Status.FAILED, Status.CANCELLED)
_BEFORE_ALL: Final = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What became of the tasks that were meant."""

    ids: list[int]
    """Those that were changed, ascending."""
    left: dict[int, str]
    """Why one was left as it was, such as "not found"; ids that were asked for, and tasks whose key or id is taken."""


def retry(conn: psycopg.Connection[Any], chosen: Filter) -> Changed:
    """Queue failed and cancelled tasks again: due now, ``retry_count`` 0, under a new fence.

    The last error and the recorded failures stay; a result goes. A task whose unique key a live task has is left,
    and so is one whose id another task has.

    :raises DatabaseError: the server refused.
    """
    return _change(conn, chosen, _RETRIABLE, "retry", "", "cannot retry tasks")


def cancel(conn: psycopg.Connection[Any], chosen: Filter) -> Changed:
    """Cancel queued and processing tasks. Supervisors that work on one are told, and stop it.

    :raises DatabaseError: the server refused.
    """
    return _change(conn, chosen, _LIVE, "cancel", "cancel", "cannot cancel tasks")


def prune(conn: psycopg.Connection[Any], older_than: float, batch: int = BATCH) -> int:
    """Delete completed, failed and cancelled tasks with their failures.

    :param older_than: seconds since a task ended.
    :param batch: tasks that one transaction deletes.
    :return: how many were deleted.
    :raises DatabaseError: the server refused.
    """
    pruned = 0
    count = batch
    begin: str | None = None

    def delete() -> tuple[Any, ...]:
        with iso_dates(conn):
            return rows(conn, "prune", older_than, batch, begin)[0]

    with refusals("cannot prune tasks"):
        while count == batch:
            count, begin = retried(delete)
            pruned += count
    return pruned


class Dropped(NamedTuple):
    """What became of the ranges that are old enough."""

    tasks: int
    """About how many went with them."""
    refused: str | None
    """Why no more could be dropped, by a view that somebody has made of one, say."""


def drop_ranges(conn: psycopg.Connection[Any], older_than: float) -> Dropped:
    """Drop the ranges of ended tasks that are all older, with their failures; any that stays is left to `prune`.

    :param older_than: seconds since a task ended.
    :raises DatabaseError: the failures could not be deleted.
    """
    tasks, refused, looked_at, after = 0, None, 0, 0
    try:
        with refusals("cannot drop ranges"):
            while found := rows(conn, "drop_range", older_than):
                tasks += found[0][1]
                looked_at = BATCH
    except PgschedError as error:
        refused = str(error)

    def delete_failures() -> tuple[Any, ...]:
        return rows(conn, "prune_failures", older_than, BATCH, after)[0]

    with refusals("cannot prune tasks"):
        while looked_at == BATCH:
            looked_at, after = retried(delete_failures)
    return Dropped(tasks, refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A supervisor that was asked for another number of processes."""

    id: int
    host: str
    pid: int
    before: int
    """How many it had."""


def scale(conn: psycopg.Connection[Any], processes: int, supervisors: Sequence[str] | None) -> list[Asked]:
    """Ask live supervisors for another number of processes; those that listen are told at once.

    :param supervisors: hosts, or ids as text; None: all.
    :return: those that were asked, by id.
    :raises DatabaseError: the server refused.
    """

    def ask() -> list[tuple[Any, ...]]:
        with conn.transaction():
            found = rows(conn, "scale", processes, supervisors)
            run(conn, "notify", "scale")
        return found

    with refusals("cannot scale supervisors"):
        return [
            Asked(id=number, host=host, pid=pid, before=before) for number, host, pid, before in sorted(retried(ask))
        ]


def _change(
    conn: psycopg.Connection[Any], chosen: Filter, statuses: Sequence[str], statement: str, hint: str, doing: str
) -> Changed:
    wanted = statuses if chosen.statuses is None else [name for name in chosen.statuses if name in statuses]
    arguments = parameters(replace(chosen, statuses=wanted))
    changed: list[int] = []
    left: dict[int, str] = {}
    after = _BEFORE_ALL

    def batch() -> list[tuple[Any, ...]]:
        with conn.transaction():
            found = rows(conn, statement, *arguments, after, BATCH)
            if any(reason is None for _, reason in found):
                run(conn, "notify", hint)
        return found

    with refusals(doing):
        # A key that was free a moment ago may be taken now: the batch sees it when it is tried again.
        while found := retried(batch, (*CONFLICTS, psycopg.errors.UniqueViolation)):
            changed += [task_id for task_id, reason in found if reason is None]
            left.update((task_id, reason) for task_id, reason in found if reason is not None)
            after = found[-1][0]
        if chosen.ids is not None:
            left.update(_unmet(conn, set(chosen.ids).difference(changed, left)))
    return Changed(ids=changed, left=left)


def _unmet(conn: psycopg.Connection[Any], ids: Iterable[int]) -> dict[int, str]:
    """Why these ids were not among those that the filter and the statuses let through."""
    reasons = dict.fromkeys(sorted(ids), "not found")
    for task_id, name in _statuses(conn, list(reasons)):
        reasons[task_id] = f"is {name}"
    return reasons


def _statuses(conn: psycopg.Connection[Any], ids: Sequence[int]) -> list[tuple[int, str]]:
    with refusals("cannot look tasks up"):
        return [(task_id, name) for task_id, name in rows(conn, "statuses", list(ids))]
