"""What a user's module declares, and what an enqueue makes of it; no database is touched."""

import asyncio
import functools
import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgsched import App, Retry, Task, UsageError
from pgsched.model import NewTask, TaskType
from pgsched.producer import Producer
from tests.support import ROOT


class Recording(Producer):
    """Keeps what would be inserted."""

    def __init__(self) -> None:
        super().__init__(lambda: "")
        self.tasks: list[NewTask] = []

    def insert(self, tasks: Sequence[NewTask]) -> list[int]:
        self.tasks += tasks
        return list(range(len(self.tasks) - len(tasks) + 1, len(self.tasks) + 1))


@pytest.fixture
def app() -> App:
    app = App()
    app.producer = Recording()
    return app


def inserted(app: App) -> list[NewTask]:
    assert isinstance(app.producer, Recording)
    return app.producer.tasks


app_of_this_module = App()


@app_of_this_module.task
def twice(number: int) -> int:
    """Double a number."""
    return 2 * number


class TestRegistration:
    def test_defaults(self) -> None:
        assert twice.type == TaskType(name="twice")
        assert app_of_this_module.tasks == {"twice": twice}

    def test_all_that_can_be_said(self, app: App) -> None:
        decorate = app.task(
            name="a b", queue="q", priority=-5, timeout="5m", memory="512MiB", retry=Retry(max=5, base=2, cap=600)
        )
        assert decorate(lambda: None).type == TaskType(
            name="a b",
            queue="q",
            priority=-5,
            timeout=300.0,
            memory=512 << 20,
            retry=Retry(max=5, base=2, cap=600),
        )

    def test_a_number_of_retries(self, app: App) -> None:
        assert app.task(retry=0)(len_of).type.retry == Retry(max=0)

    def test_a_task_is_still_the_function(self) -> None:
        assert twice(4) == 8
        assert (vars(twice)["__name__"], twice.__doc__) == ("twice", "Double a number.")

    def test_a_task_can_be_pickled_by_reference(self) -> None:
        assert pickle.loads(pickle.dumps(twice)) is twice

    def test_tasks_are_read_only(self, app: App) -> None:
        with pytest.raises(TypeError):
            app.tasks["a"] = twice  # type: ignore[index]

    def test_a_name_taken_twice_names_both_places(self, app: App) -> None:
        app.task(name="same")(len_of)
        with pytest.raises(UsageError) as caught:
            app.task(name="same")(nothing)
        message = str(caught.value)
        assert message.count(f"{__file__}:") == 2
        assert "'same' is taken twice" in message

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"name": ""}, "task name ''"),
            ({"name": " a"}, "task name ' a'"),
            ({"name": "x" * 65}, "at most 64 characters, not 65"),
            ({"queue": ""}, "task len_of: queue ''"),
            ({"priority": 32768}, "task len_of: priority 32768: must be a whole number from -32768 to 32767"),
            ({"timeout": 0}, "task len_of: timeout 0: must be from 1ms to "),
            ({"timeout": "soon"}, "task len_of: timeout 'soon': must be from 1ms to "),
            ({"memory": "lots"}, "task len_of: memory 'lots': must be from 1MiB to "),
            ({"retry": -1}, "task len_of: Retry(max=-1): must be a whole number from 0"),
            ({"retry": "often"}, "task len_of: retry 'often': must be a Retry"),
        ],
    )
    def test_f83_values_that_make_no_sense(self, app: App, values: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError) as caught:
            app.task(**values)(len_of)
        assert words in str(caught.value)
        assert not app.tasks

    def test_functions_that_keyword_arguments_cannot_call(self, app: App) -> None:
        def star(*numbers: int) -> None: ...

        def positional(number: int, /) -> None: ...

        for function, words in ((star, "*numbers"), (positional, "the positional-only 'number'")):
            with pytest.raises(UsageError, match=r"passed by keyword$") as caught:
                app.task(function)
            assert words in str(caught.value)

    @pytest.mark.parametrize("function", [lambda: None, functools.partial(print), 5, object()])
    def test_functions_without_a_name(self, app: App, function: Any) -> None:
        with pytest.raises(UsageError, match="has no name of its own: give it name="):
            app.task(function)

    def test_a_task_of_another_app_is_registered_for_itself(self, app: App) -> None:
        again = app.task(name="again", queue="two")(twice)
        assert (again.app, again.function, again.type) == (app, twice.function, TaskType(name="again", queue="two"))
        assert twice.type == TaskType(name="twice")
        assert app.task(twice).name == "twice"

    def test_attributes_of_a_function_are_none_of_the_tasks(self, app: App) -> None:
        @functools.wraps(twice)
        def wrapper(number: int) -> int:
            return number

        wrapper.type = "x"  # type: ignore[attr-defined]
        task = app.task(name="wrapper")(wrapper)
        assert (task.app, task.function, task.type) == (app, wrapper, TaskType(name="wrapper"))
        assert task(4) == 4

    def test_async_functions(self, app: App) -> None:
        @app.task
        async def later(number: int) -> int:
            return number

        assert asyncio.run(later(3)) == 3


def len_of(path: str, *, strict: bool = True, limit: int | None = None) -> int:
    raise NotImplementedError


def rest(path: str, **more: int) -> int:
    raise NotImplementedError


def nothing() -> None:
    raise NotImplementedError


class TestPayload:
    """What a worker reads from the database."""

    @pytest.mark.parametrize(
        ("function", "payload"),
        [
            (len_of, {"path": "a"}),
            (len_of, {"path": None, "limit": 4, "strict": False}),
            (rest, {"path": "a", "anything": 1}),
            (nothing, {}),
        ],
    )
    def test_what_fits(self, app: App, function: Callable[..., Any], payload: dict[str, Any]) -> None:
        assert app.task(function).bind_json(json.dumps(payload)) == payload

    @pytest.mark.parametrize(
        ("function", "payload", "words"),
        [
            (len_of, "{}", "missing a required argument: 'path'; len_of takes (path: str, *, "),
            (len_of, '{"path": "a", "preset": 1}', "got an unexpected keyword argument 'preset'"),
            (nothing, '{"a": 1}', "got an unexpected keyword argument 'a'"),
            (rest, '{"more": {"a": 1}}', "missing a required argument: 'path'"),
            (nothing, "[1]", "payload must be a JSON object, not an array"),
            (nothing, "null", "payload must be a JSON object, not null"),
            (nothing, '"{}"', "payload must be a JSON object, not a string"),
            (nothing, "{", "payload is not JSON"),
            (nothing, "[" * 100_000, "payload is not JSON"),
        ],
    )
    def test_what_does_not(self, app: App, function: Callable[..., Any], payload: str, words: str) -> None:
        task = app.task(function)
        with pytest.raises(UsageError) as caught:
            task.bind_json(payload)
        assert str(caught.value).startswith(f"task {task.name}: ")
        assert words in str(caught.value)


class TestEnqueue:
    def test_arguments_are_stored_by_name_and_defaults_are_not(self, app: App) -> None:
        task = app.task(len_of)
        assert task.enqueue("a", limit=3) == 1
        assert json.loads(inserted(app)[0].payload) == {"path": "a", "limit": 3}

    def test_rest_arguments_lie_flat(self, app: App) -> None:
        app.task(rest).enqueue(path="a", size=3)
        assert json.loads(inserted(app)[0].payload) == {"path": "a", "size": 3}

    def test_what_is_stored_is_what_the_worker_reads(self, app: App) -> None:
        task = app.task(rest)
        task.enqueue("a", b=1)
        assert task.bind_json(inserted(app)[0].payload) == {"path": "a", "b": 1}

    def test_values_of_the_task_type(self, app: App) -> None:
        app.task(queue="q", priority=3, timeout=5, retry=7)(nothing).enqueue()
        assert inserted(app) == [NewTask("nothing", "{}", "q", 3, 7)]

    def test_options(self, app: App) -> None:
        at = datetime(2030, 1, 2, tzinfo=UTC)
        task = app.task(retry=7)(nothing)
        task.options(run_at=at, queue="q", priority=-1, unique_key="k", timeout="1m", max_retries=0).enqueue()
        assert inserted(app) == [NewTask("nothing", "{}", "q", -1, 0, at, 0.0, 60.0, "k")]

    @pytest.mark.parametrize("delay", [90, 90.0, "90", "90s", timedelta(seconds=90)])
    def test_delay(self, app: App, delay: Any) -> None:
        app.task(nothing).options(delay=delay).enqueue()
        assert (inserted(app)[0].run_at, inserted(app)[0].delay) == (None, 90.0)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"run_at": datetime(2030, 1, 2)}, "run_at 2030-01-02T00:00:00: has no time zone"),
            ({"run_at": "2030-01-02"}, "run_at '2030-01-02': must be a datetime"),
            ({"run_at": datetime.now(UTC), "delay": 1}, "run_at and delay 1: give one of them, not both"),
            ({"delay": -1}, "delay -1: must be from 0s to "),
            ({"delay": timedelta(days=-1)}, "delay -86400.0: must be from 0s to "),
            ({"delay": float("nan")}, "delay nan: must be from 0s to "),
            ({"queue": ""}, "queue ''"),
            ({"priority": 1.5}, "priority 1.5: must be a whole number"),
            ({"unique_key": ""}, "unique_key ''"),
            ({"unique_key": "a\0"}, "unique_key 'a\\x00'"),
            ({"timeout": 0}, "timeout 0: must be from 1ms"),
            ({"max_retries": -1}, "max_retries -1: must be a whole number from 0"),
        ],
    )
    def test_options_that_make_no_sense(self, app: App, options: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError) as caught:
            app.task(nothing).options(**options)
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            ((), "missing a required argument: 'path'"),
            (("a", "b"), "too many positional arguments"),
            ((float("nan"),), "path"),
            (({"deep": [1, {2}]},), "path.deep[1]"),
            (("a\0",), "path"),
            (("\ud800",), "path"),
        ],
    )
    def test_arguments_that_do_not_fit_or_are_no_json(self, app: App, args: tuple[Any, ...], words: str) -> None:
        task: Task[..., Any] = app.task(len_of)
        with pytest.raises(UsageError) as caught:
            task.enqueue(*args)
        assert str(caught.value).startswith("task len_of: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not inserted(app)

    def test_many(self, app: App) -> None:
        task = app.task(len_of)
        assert task.enqueue_many({"path": str(n)} for n in range(3)) == [1, 2, 3]
        assert [json.loads(new.payload) for new in inserted(app)] == [{"path": "0"}, {"path": "1"}, {"path": "2"}]
        assert task.enqueue_many([]) == []

    def test_many_are_all_checked_before_any_is_inserted(self, app: App) -> None:
        with pytest.raises(UsageError, match="missing a required argument"):
            app.task(len_of).enqueue_many([{"path": "a"}, {}])
        assert not inserted(app)

    def test_many_have_no_key(self, app: App) -> None:
        with pytest.raises(UsageError, match="unique_key is for one task"):
            app.task(nothing).options(unique_key="k").enqueue_many([{}, {}])

    def test_async_forms(self, app: App) -> None:
        async def enqueue() -> tuple[int, list[int]]:
            task = app.task(nothing)
            return await task.enqueue_async(), await task.enqueue_many_async([{}, {}])

        assert asyncio.run(enqueue()) == (1, [2, 3])

    def test_connections_of_the_wrong_kind(self, app: App) -> None:
        class AsyncConnection:
            async def execute(self) -> None: ...

        class Connection:
            def execute(self) -> None: ...

        task: Any = app.task(nothing)
        with pytest.raises(UsageError, match="is an AsyncConnection; use the _async form"):
            task.options(connection=AsyncConnection()).enqueue()
        with pytest.raises(UsageError, match="is not an AsyncConnection; use the form without _async"):
            asyncio.run(task.options(connection=Connection()).enqueue_async())
        with pytest.raises(UsageError, match="task nothing: connection is 5, must be a psycopg connection"):
            task.options(connection=5).enqueue()


class TestDsn:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGSCHED_DSN", "from the environment")

    def test_an_apps_own_comes_first(self) -> None:
        app = App("own")
        app.configure("from the supervisor")
        assert app._find_dsn() == "own"

    def test_the_supervisors_comes_before_the_environments(self) -> None:
        app = App()
        assert app._find_dsn() == "from the environment"
        app.configure("from the supervisor")
        assert app._find_dsn() == "from the supervisor"

    def test_a_supervisor_that_has_none_leaves_it_to_libpqs_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PGSCHED_DSN")
        monkeypatch.setenv("PGHOST", "from libpq")
        app = App()
        app.configure("")
        assert app._find_dsn() == ""


def test_importing_pgsched_loads_neither_driver_nor_command_line_nor_loop() -> None:
    program = "import sys, pgsched; print(*{'psycopg', 'click', 'asyncio', 'prometheus_client'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True, timeout=30) == "\n"


def test_a_forked_process_has_a_producer_state_of_its_own() -> None:
    program = textwrap.dedent("""
        import os
        from pgsched.producer import Producer

        producer = Producer(lambda: "")
        state = producer._state
        state.lock.acquire()  # another thread of the parent is inserting
        if os.fork() == 0:
            fresh = producer._own_state()
            os._exit(0 if fresh is not state and not fresh.lock.locked() else 1)
        assert producer._own_state() is state
        raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
    """)
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=30, check=False).returncode == 0
