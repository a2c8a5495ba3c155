"""Threads for calls that cannot be cut short, such as those of libc that ask a name server: nobody waits for their end.

A loop's own threads are waited for when it ends, and so is the process: as long as a name server is silent.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MOST: Final = 32
"""Calls at once: four connections that are tried again and again must leave some for a scrape."""


# A loop takes nothing but a ThreadPoolExecutor; of that only the name is used.
class LooseThreads(ThreadPoolExecutor):
    """Runs each call in a thread that ends with the process, if not before."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[object], Callable[[], None]]] = deque()
        self._running = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function as soon as one of `MOST` threads is free."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        entry: Any = (future, call)
        with self._lock:
            self._waiting.append(entry)
            begin = self._running < MOST
            self._running += begin
        if begin:
            try:
                threading.Thread(target=self._run, name="pgsched-call", daemon=True).start()
            except RuntimeError:
                # The host has no room for a thread now; it may have later.
                with self._lock:
                    self._running -= 1
                    if entry in self._waiting:
                        self._waiting.remove(entry)
                        raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing that waits; what runs is left to itself."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            future.cancel()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                _, call = self._waiting.popleft()
            call()
