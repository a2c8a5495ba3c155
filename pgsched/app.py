"""What a user's module declares: an App, and functions made into tasks.

The same objects serve three processes: a program that enqueues, a worker that looks tasks up by name and
calls them, and the forkserver that only imports. So nothing here imports the database driver before a task is
enqueued, and importing a user's module opens nothing.
"""

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from pgsched.dsn import resolve
from pgsched.errors import PgschedError, UsageError
from pgsched.model import NewTask, Retry, TaskType
from pgsched.options import Options
from pgsched.producer import Producer
from pgsched.quantities import check_name, parse_bytes, parse_priority, parse_seconds
from pgsched.rules.payload import check_payload
from pgsched.signature import Signature, place

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """A set of tasks, and the database that they are enqueued in.

    Threads may share it. A process that was forked opens a connection of its own.

    :param dsn: a connection string for psycopg; without one ``PGSCHED_DSN``, libpq's own environment
        (``PGHOST``, ``PGSERVICE``, ...) or the embedded server is used. It is looked at when the first task
        is enqueued, not before.
    :param password: returns the password, and is called for each new connection; default what
        ``PGSCHED_PASSWORD_COMMAND`` or ``PGSCHED_PASSWORD_FROM`` says.
    """

    def __init__(self, dsn: str | None = None, *, password: Callable[[], str] | None = None) -> None:
        self._dsn = dsn
        self._tasks: dict[str, Task[Any, Any]] = {}
        self.producer = Producer(self._find_dsn, password)
        """The connection of its own."""

    @property
    def tasks(self) -> Mapping[str, "Task[Any, Any]"]:
        """The tasks by name; read-only."""
        return MappingProxyType(self._tasks)

    def configure(self, dsn: str | None) -> None:
        """Set the DSN of an App that was made without one; an App's own DSN stays. Called in each worker.

        :param dsn: empty where libpq's environment, which a worker has too, says everything.
        """
        if self._dsn is None:
            self._dsn = dsn or None

    def close(self) -> None:
        """Close the App's own connection; the next enqueue opens another."""
        self.producer.close()

    def _find_dsn(self) -> str:
        return resolve(self._dsn, os.environ, _embedded_dsn, option="App(dsn)")

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
            if isinstance(function, Task):
                function = function.function
            task_type = _task_type(function, name, queue, priority, timeout, memory, retry)
            return self._register(Task(self, function, task_type))

        return register if function is None else register(function)

    def _register(self, task: "Task[P, R]") -> "Task[P, R]":
        other = self._tasks.get(task.name)
        if other is not None:
            raise UsageError(
                f"task name {task.name!r} is taken twice: by {place(other.function)} and by {place(task.function)}; "
                "give one of them name=..."
            )
        self._tasks[task.name] = task
        return task

    def __repr__(self) -> str:
        return f"<App with {len(self._tasks)} tasks>"


class Task(Generic[P, R]):
    """A registered function. Calling it calls the function, here and now; :meth:`enqueue` has it called by a worker."""

    def __init__(self, app: App, function: Callable[P, R], task_type: TaskType) -> None:
        self.app = app
        self.function = function
        self.type = task_type
        self._signature = Signature(task_type.name, function)
        # Not the function's own attributes: they could have the names of ours.
        functools.update_wrapper(self, function, updated=())

    @property
    def name(self) -> str:
        """The ``task_type`` in the database."""
        return self.type.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        run_at: datetime | None = None,
        delay: float | str | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        connection: "Connection[Any] | AsyncConnection[Any] | None" = None,
        unique_key: str | None = None,
        timeout: float | str | None = None,
        max_retries: int | None = None,
    ) -> "Enqueuer[P, R]":
        """Say more about what is enqueued: ``task.options(priority=5).enqueue(...)``.

        :param run_at: a datetime with a time zone, before which the task does not start.
        :param delay: seconds (or "5m"), or a timedelta, from now by the database's clock.
        :param connection: a psycopg connection; the task is part of its transaction and exists once that commits.
        :param unique_key: while a task with this key is queued or running, no other is made, and its id is returned.
        :raises UsageError: a value makes no sense.
        """
        options = Options(
            run_at=run_at,
            delay=delay,
            queue=queue,
            priority=priority,
            connection=connection,
            unique_key=unique_key,
            timeout=timeout,
            max_retries=max_retries,
        )
        return Enqueuer(self, options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Enqueue one task, commit, and return its id; see :meth:`Enqueuer.enqueue`."""
        return Enqueuer(self, Options()).enqueue(*args, **kwargs)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """:meth:`enqueue` for coroutines."""
        return await Enqueuer(self, Options()).enqueue_async(*args, **kwargs)

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[int]:
        """Enqueue one task per mapping of keyword arguments, all or none; see :meth:`Enqueuer.enqueue_many`."""
        return Enqueuer(self, Options()).enqueue_many(arguments)

    async def enqueue_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[int]:
        """:meth:`enqueue_many` for coroutines."""
        return await Enqueuer(self, Options()).enqueue_many_async(arguments)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name every argument of a call; see :meth:`Signature.bind`."""
        return self._signature.bind(args, kwargs)

    def bind_json(self, payload: str) -> dict[str, Any]:
        """Read a payload from the database as the function's keyword arguments; see :meth:`Signature.read`."""
        return self._signature.read(payload)

    def __reduce__(self) -> str:
        """Pickle by reference, like a function: a task may hand itself to a process pool."""
        return str(getattr(self, "__qualname__", self.name))

    def __repr__(self) -> str:
        return f"<Task {self.name} of {place(self.function)}>"


class Enqueuer(Generic[P, R]):
    """A task together with the options of an enqueue."""

    def __init__(self, task: Task[P, R], options: Options) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Insert one task and return its id.

        Without ``connection`` it is committed on the App's own connection. An INSERT whose reply is lost is not
        repeated: after a DatabaseError the task may exist, unless a ``unique_key`` lets you safely try again.

        :raises UsageError: the arguments do not fit the function's signature, or are not JSON.
        :raises DatabaseError: the database cannot be reached, or refuses.
        :raises SchemaError: the tables are missing; run ``pgsched migrate``.
        """
        return self._insert([self._new_task(args, kwargs)])[0]

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """:meth:`enqueue` for coroutines; ``connection`` is an AsyncConnection."""
        return (await self._insert_async([self._new_task(args, kwargs)]))[0]

    def enqueue_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[int]:
        """Insert one task per mapping of keyword arguments, all or none, and return their ids in order.

        :raises UsageError, DatabaseError, SchemaError: as for :meth:`enqueue`; nothing is inserted.
        """
        return self._insert(self._new_tasks(arguments))

    async def enqueue_many_async(self, arguments: Iterable[Mapping[str, Any]]) -> list[int]:
        """:meth:`enqueue_many` for coroutines; ``connection`` is an AsyncConnection."""
        return await self._insert_async(self._new_tasks(arguments))

    def _new_task(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NewTask:
        try:
            payload = check_payload(self._task.bind(args, kwargs))
        except UsageError as error:
            raise UsageError(f"task {self._task.name}: {error}") from None
        return self._options.new_task(self._task.type, payload)

    def _new_tasks(self, arguments: Iterable[Mapping[str, Any]]) -> list[NewTask]:
        if self._options.unique_key is not None:
            raise UsageError(f"task {self._task.name}: unique_key is for one task; enqueue_many makes several")
        return [self._new_task((), kwargs) for kwargs in arguments]

    def _insert(self, tasks: list[NewTask]) -> list[int]:
        connection = self._options.connection
        if not tasks:
            return []
        if connection is None:
            return self._task.app.producer.insert(tasks)
        if _is_async(connection):
            raise UsageError(f"task {self._task.name}: connection is an AsyncConnection; use the _async form")
        if not callable(getattr(connection, "execute", None)):
            raise UsageError(f"task {self._task.name}: connection is {connection!r}, must be a psycopg connection")
        from pgsched.store.enqueue import insert

        return insert(connection, tasks)

    async def _insert_async(self, tasks: list[NewTask]) -> list[int]:
        connection = self._options.connection
        if not tasks:
            return []
        if connection is None:
            import asyncio

            # An async connection belongs to one loop; the App's own one serves all loops and threads.
            return await asyncio.to_thread(self._task.app.producer.insert, tasks)
        if not _is_async(connection):
            raise UsageError(
                f"task {self._task.name}: connection is not an AsyncConnection; use the form without _async"
            )
        from pgsched.store.enqueue import insert_async

        return await insert_async(connection, tasks)


def _is_async(connection: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(connection, "execute", None))


_joined: Any = None
"""This process's use of the embedded server."""


def _embedded_dsn() -> str:
    """Join the embedded server, or join it anew: it may have crashed. Returns its DSN.

    Loaded by name: what a user imports has no part in how servers are run.
    """
    global _joined
    handle = importlib.import_module("pgsched.ops.embedded").start()
    before, _joined = _joined, handle
    if before is not None:
        with contextlib.suppress(PgschedError):
            before.close()
    return str(handle.dsn)


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
            raise UsageError(f"{place(function)} has no name of its own: give it name=...")
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
        priority=parse_priority(priority, f"{who} priority"),
        timeout=None if timeout is None else parse_seconds(timeout, f"{who} timeout", 0.001, 1e8),
        memory=None if memory is None else parse_bytes(memory, f"{who} memory", 1 << 20, 1 << 50),
        retry=retry or Retry(),
    )
