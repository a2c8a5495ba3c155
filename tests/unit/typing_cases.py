"""How a type checker must see tasks. Never run; checked by mypy, which also reports an ignore that is not needed."""

from collections.abc import Coroutine
from typing import Any, assert_type

from pgsched import App, Enqueuer, Task

app = App()


@app.task
def plain(path: str, preset: int = 6) -> bytes:
    return path.encode() * preset


@app.task(timeout=60, memory="512MiB", retry=5)
def decorated(path: str, preset: int = 6) -> bytes:
    return path.encode() * preset


@app.task
async def asynchronous(path: str) -> None: ...


assert_type(plain("a"), bytes)
assert_type(decorated("a", preset=3), bytes)
assert_type(plain.enqueue("a"), int)
assert_type(decorated.enqueue(path="a", preset=3), int)
assert_type(decorated.options(priority=5).enqueue("a"), int)


async def coroutine() -> None:
    running: Coroutine[Any, Any, None] = asynchronous("a")
    await running
    assert_type(await plain.enqueue_async("a"), int)
    assert_type(await plain.options(delay=5).enqueue_async("a"), int)
    assert_type(await plain.enqueue_many_async([{"path": "a"}]), list[int])
    await plain.enqueue_async(5)  # type: ignore[arg-type]


def both_forms_are_tasks(task: Task[[str], None]) -> Enqueuer[[str], None]:
    return task.options(queue="q")


plain.enqueue()  # type: ignore[call-arg]
plain.enqueue(5)  # type: ignore[arg-type]
plain.enqueue("a", preset="high")  # type: ignore[arg-type]
plain.enqueue("a", level=3)  # type: ignore[call-arg]
decorated.options(queue="q").enqueue(path=b"a")  # type: ignore[arg-type]
decorated.options(run_at="tomorrow")  # type: ignore[arg-type]
decorated.options(colour="red")  # type: ignore[call-arg]
app.task(retry="often")  # type: ignore[call-overload]
