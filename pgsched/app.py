"""What a user's module declares: an App, and functions made into tasks.

The same objects serve three processes: a program that enqueues, a worker that looks tasks up by name and
calls them, and the forkserver that only imports. So nothing here imports the database driver before a task is
enqueued, and importing a user's module opens nothing.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload

from pgsched.errors import UsageError
from pgsched.model import Retry, TaskType
from pgsched.quantities import check_name, parse_bytes, parse_number, parse_seconds

P = ParamSpec("P")
R = TypeVar("R")

_Parameter = inspect.Parameter


class App:
    """A set of tasks, and the database that they are enqueued in.

    Threads may share it. A process that was forked opens a connection of its own.

    :param dsn: a connection string for psycopg; without one ``PGSCHED_DSN``, libpq's own environment
        (``PGHOST``, ``PGSERVICE``, ...) or the embedded server is used. It is looked at when the first task
        is enqueued, not before.
    """

    def __init__(self, dsn: str | None = None) -> None:
        self._dsn = dsn
        self._tasks: dict[str, Task[Any, Any]] = {}

    @property
    def tasks(self) -> Mapping[str, "Task[Any, Any]"]:
        """The tasks by name; read-only."""
        return MappingProxyType(self._tasks)

    def configure(self, dsn: str | None) -> None:
        """Set the DSN of an App that was made without one; an App's own DSN stays. Called in each worker."""
        if self._dsn is None:
            self._dsn = dsn

    @overload
    def task(self, function: Callable[P, R], /) -> "Task[P, R]": ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        timeout: float | str | None = None,
        memory: int | str | None = None,
        retry: Retry | int | None = None,
    ) -> Callable[[Callable[P, R]], "Task[P, R]"]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        timeout: float | str | None = None,
        memory: int | str | None = None,
        retry: Retry | int | None = None,
    ) -> Any:
        """Make a function, sync or ``async def``, a task of this App: ``@app.task`` or ``@app.task(timeout=60)``.

        :param name: the ``task_type`` in the database, at most 64 characters; default the function's own name.
        :param queue: where its tasks wait unless an enqueue says otherwise.
        :param priority: -32768 to 32767, higher first.
        :param timeout: seconds (or "5m") that one attempt may take; None for no limit.
        :param memory: bytes (or "512MiB") that the worker and its descendants may use; None for no limit.
        :param retry: a :class:`Retry`, or how many retries with its default delays; default ``Retry()``.
        :raises UsageError: a value is out of range, the name is taken, or the function cannot be called with
            a JSON object of keyword arguments.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            task_type = _task_type(function, name, queue, priority, timeout, memory, retry)
            return self._register(Task(self, function, task_type))

        return register if function is None else register(function)

    def _register(self, task: "Task[P, R]") -> "Task[P, R]":
        other = self._tasks.get(task.name)
        if other is not None:
            raise UsageError(
                f"task name {task.name!r} is taken twice: by {_place(other.function)} and by {_place(task.function)}; "
                "give one of them name=..."
            )
        self._tasks[task.name] = task
        return task

    def __repr__(self) -> str:
        return f"<App with {len(self._tasks)} tasks>"


class Task(Generic[P, R]):
    """A registered function. Calling it calls the function, here and now."""

    def __init__(self, app: App, function: Callable[P, R], task_type: TaskType) -> None:
        self.app = app
        self.function = function
        self.type = task_type
        self._signature = _signature(task_type.name, function)
        parameters = self._signature.parameters.values()
        named = [p for p in parameters if p.kind is not _Parameter.VAR_KEYWORD]
        self._required = {p.name for p in named if p.default is _Parameter.empty}
        self._known = None if len(named) < len(parameters) else {p.name for p in named}
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        """The ``task_type`` in the database."""
        return self.type.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def bind_json(self, payload: str) -> dict[str, Any]:
        """Read a payload from the database as the function's keyword arguments.

        :raises UsageError: it is not a JSON object, or does not fit the function's signature.
        """
        try:
            arguments = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"task {self.name}: payload is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise UsageError(f"task {self.name}: payload must be a JSON object, not {_json_kind(arguments)}")
        if not self._required <= arguments.keys() or (self._known is not None and not arguments.keys() <= self._known):
            self._bind((), arguments)
        return arguments

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Positional arguments by name, so that what is stored outlives a reordering of the parameters."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"task {self.name}: {error}; it takes {self._signature}") from None
        arguments = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is _Parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(parameter.name, {}))
        return arguments

    def __reduce__(self) -> str:
        """Pickle by reference, like a function: a task may hand itself to a process pool."""
        return str(getattr(self, "__qualname__", self.name))

    def __repr__(self) -> str:
        return f"<Task {self.name} of {_place(self.function)}>"


def _task_type(
    function: Callable[..., Any],
    name: str | None,
    queue: str,
    priority: int,
    timeout: float | str | None,
    memory: int | str | None,
    retry: Retry | int | None,
) -> TaskType:
    if name is None:
        name = getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise UsageError(f"{_place(function)} has no name of its own: give it name=...")
    who = f"task {name}:"
    check_name("task name", name)
    check_name(f"{who} queue", queue)
    if isinstance(retry, int):
        try:
            retry = Retry(max=retry)
        except ValueError as error:
            raise UsageError(f"{who} {error}") from None
    elif retry is not None and not isinstance(retry, Retry):
        raise UsageError(f"{who} retry {retry!r}: must be a Retry, a number of retries, or None")
    return TaskType(
        name=name,
        queue=queue,
        priority=parse_number(priority, f"{who} priority", -32768, 32767),
        timeout=None if timeout is None else parse_seconds(timeout, f"{who} timeout", 0.001, 1e8),
        memory=None if memory is None else parse_bytes(memory, f"{who} memory", 1 << 20, 1 << 50),
        retry=retry or Retry(),
    )


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    if not callable(function):
        raise UsageError(f"task {name}: {function!r} is not a function")
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise UsageError(f"task {name}: {function!r} does not tell its parameters; wrap it in a function") from None
    for parameter in signature.parameters.values():
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            _refuse(name, function, f"*{parameter.name}")
        if parameter.kind is _Parameter.POSITIONAL_ONLY:
            _refuse(name, function, f"the positional-only {parameter.name!r}")
    return signature


def _refuse(name: str, function: Callable[..., Any], what: str) -> NoReturn:
    raise UsageError(
        f"task {name}: {_place(function)} takes {what}, "
        "but a task's arguments are stored as a JSON object and passed by keyword"
    )


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")
