"""How commands say which tasks they mean: by id, type, queue and status; all that is given must be true."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pgsched.cli.options import Checked, all_of, option
from pgsched.errors import UsageError
from pgsched.quantities import check_name, parse_number

F = TypeVar("F", bound=Callable[..., Any])


def task_id(text: str, shown: str) -> int:
    """Read an id.

    :raises UsageError: it is none.
    """
    return parse_number(text, shown, -(2**63), 2**63 - 1)


def filter_options(statuses: Iterable[str]) -> Callable[[F], F]:
    """Add ``--status``, ``--type`` and ``--queue``; the function gets them as one ``chosen`` Filter.

    :param statuses: those that make sense for the command.
    """
    known = [str(status) for status in statuses]

    def read_statuses(text: str, shown: str) -> list[str]:
        given = text.split(",")
        for status in given:
            if status not in known:
                raise UsageError(f"{shown} {status!r}: must be {', '.join(known[:-1])} or {known[-1]}")
        return given

    options: Callable[[F], F] = all_of(
        option(
            "--status", metavar="A,B", type=Checked(read_statuses), help=f"Only with this status: {', '.join(known)}."
        ),
        option("--type", "task_types", metavar="A,B", type=Checked(_names), help="Only of these task types."),
        option("--queue", metavar="A,B", type=Checked(_names), help="Only in these queues."),
    )

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_filter(
            *args: Any,
            status: list[str] | None,
            task_types: list[str] | None,
            queue: list[str] | None,
            **kwargs: Any,
        ) -> Any:
            from pgsched.store.views import Filter

            chosen = Filter(statuses=status, task_types=task_types, queues=queue)
            return function(*args, chosen=chosen, **kwargs)

        return options(with_filter)  # type: ignore[return-value]

    return decorate


def _names(text: str, shown: str) -> list[str]:
    return [check_name(shown, name) for name in text.split(",")]
