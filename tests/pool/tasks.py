"""The app of the pool's tests: tasks that do what tasks should not do. Imported by forkservers and workers only."""

import contextlib
import ctypes
import decimal
import faulthandler
import itertools
import multiprocessing
import os
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from pgsched.app import App
from pgsched.context import Interrupted, current_task

app = App()
MIB = 1024 * 1024


@app.task
def noop() -> None: ...


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task
def echo(value: Any) -> Any:
    return value


@app.task
def pid() -> int:
    return os.getpid()


@app.task
def text(size: int) -> str:
    return "x" * size


@app.task
def length(value: str) -> int:
    return len(value)


@app.task
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@app.task
def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@app.task
async def async_nap(seconds: float) -> float:
    import asyncio

    await asyncio.sleep(seconds)
    return seconds


@app.task
async def async_cleanup(path: str) -> None:
    import asyncio

    try:
        await asyncio.sleep(600)
    finally:
        os.close(os.open(path, os.O_CREAT))


@app.task
def wait_for(path: str, mark: str | None = None) -> str:
    """Say that it runs, then wait for a file."""
    if mark:
        Path(mark).touch()
    while not Path(path).exists():
        time.sleep(0.002)
    return "seen"


@app.task
def context() -> dict[str, Any]:
    task = current_task()
    remaining = task.remaining()
    return {
        "id": task.id,
        "task_type": task.task_type,
        "queue": task.queue,
        "attempt": task.attempt,
        "fence": task.fence,
        "max_retries": task.max_retries,
        "remaining": remaining,
        "deadline": task.deadline is not None,
        "stop_requested": task.stop_requested,
        "reason": task.stop_reason,
    }


@app.task
def polite(mark: str) -> str | None:
    """Work until asked to stop, and return."""
    try:
        Path(mark).touch()
        while True:
            time.sleep(0.002)
    except Interrupted:
        task = current_task()
        return task.stop_reason if task.stop_requested else None


# How tasks end


class Pair(Exception):
    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left}/{right}")


class Picky(Exception):
    def __init__(self, owner: Any) -> None:
        super().__init__(owner.name)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Strange(BaseException): ...


@app.task
def fail(how: str) -> None:
    if how == "pair":
        raise Pair("a", "b")
    if how == "picky":
        raise Picky(type("Owner", (), {"name": "someone"}))
    if how == "local":

        class Local(Exception): ...

        raise Local("made here")
    if how == "lock":
        raise ValueError("held", threading.Lock())
    if how == "mute":
        raise Mute
    if how == "nul":
        raise ValueError("a\0b")
    if how == "surrogate":
        raise ValueError("a\ud800b")
    if how == "lines":
        raise ValueError("first\nsecond")
    if how == "long":
        raise ValueError("x" * 1_000_000)
    if how == "cause":
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    if how == "deep":
        fail.function(how)
    raise AssertionError(how)


@app.task
def leave(how: str) -> NoReturn:
    if how == "exit_0":
        sys.exit(0)
    if how == "exit_3":
        sys.exit(3)
    if how == "exit_text":
        sys.exit("text")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "generator_exit":
        raise GeneratorExit
    if how == "base":
        raise Strange("odd")
    if how == "_exit_0":
        os._exit(0)
    if how == "_exit_7":
        os._exit(7)
    if how == "interrupted":
        from pgsched.model import OutcomeKind

        raise Interrupted(OutcomeKind.TIMED_OUT, "by myself")
    raise AssertionError(how)


@app.task
def die(number: int, words: str = "") -> None:
    if words:
        os.write(2, words.encode() + b"\n")
    if number == signal.SIGSEGV:
        # faulthandler's report is tested elsewhere; here it would only fill the log.
        faulthandler.disable()
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
    time.sleep(60)


@app.task
def abort() -> None:
    os.abort()


@app.task
def overflow() -> bool:
    """Recursion in C, too deep for the stack."""
    sys.setrecursionlimit(10**9)
    resource.setrlimit(resource.RLIMIT_STACK, (256 * 1024, resource.RLIM_INFINITY))
    left: list[Any] = []
    right: list[Any] = []
    for _ in range(10**6):
        left, right = [left], [right]
    return left == right


@app.task
def exhaust_address_space() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (256 * MIB, resource.RLIM_INFINITY))
    return len(bytearray(512 * MIB))


@app.task
def unstorable(what: str) -> Any:
    values = {
        "nan": {"m": float("nan")},
        "inf": {"m": float("inf")},
        "nan_in_list": [1, [2, float("nan")]],
        "decimal": decimal.Decimal("NaN"),
        "nul": {"a": ["b\0c"]},
        "nul_key": {"a\0": 1},
        "surrogate": {"name": os.fsdecode(b"caf\xe9")},
        "set": {"s": {1}},
        "object": object(),
        "cycle": None,
    }
    if what == "cycle":
        cycle: list[Any] = []
        cycle.append(cycle)
        return cycle
    return values[what]


@app.task
def big_integers() -> list[int]:
    return [2**63, 2**200]


# What outlives or ignores


@app.task
def stubborn(mark: str | None = None) -> None:
    """Catch everything, for ever."""
    if mark:
        Path(mark).touch()
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            traceback.format_exc()


@app.task
def change_group() -> None:
    """Leave the worker's process group for that of the supervisor, and catch everything there."""
    os.setpgid(0, os.getpgid(os.getppid()))
    stubborn()


@app.task
def spin() -> None:
    while True:
        pass


@app.task
def sleep_in_c() -> None:
    """Hold the interpreter in C code that a signal ends."""
    ctypes.PyDLL(None).sleep(600)


@app.task
def stuck_in_c() -> bool:
    """Hold the interpreter in C code that no signal ends."""
    return all(itertools.repeat(True))


@app.task
def catastrophic_regex() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.task
def join_thread() -> None:
    def loop() -> None:
        while True:
            time.sleep(0.01)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    thread.join()


@app.task
def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        time.sleep(0.01)


@app.task
def start_sleeps(how: str) -> list[int]:
    """Start processes that outlive us if they can, and wait."""
    script = "sh -c 'sleep 600 & sleep 600' & wait" if how == "deep" else "sleep 600"
    subprocess.Popen(["sh", "-c", script], start_new_session=how == "session").wait()
    return []


@app.task
def leave_sleep() -> int:
    """Return, and leave a process behind in our group that holds all our descriptors."""
    return subprocess.Popen(["sleep", "600"], close_fds=False).pid


def double(number: int) -> int:
    return number * 2


@app.task
def inner_executor(seconds: float = 0.0) -> list[int]:
    with ProcessPoolExecutor(2) as executor:
        doubled = list(executor.map(double, range(8)))
        if seconds:
            list(executor.map(time.sleep, [seconds] * 4))
    return doubled


@app.task
def inner_pool() -> list[int]:
    with multiprocessing.Pool(2) as pool:
        return pool.map(double, range(8))


@app.task
def inner_process(seconds: float = 0.0) -> int | None:
    process = multiprocessing.Process(target=time.sleep, args=(seconds,))
    process.start()
    process.join()
    return process.exitcode


@app.task
def terminate_inner() -> int | None:
    process = multiprocessing.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


@app.task
def fork_and_return() -> str:
    """Both halves come back to the worker's code."""
    return "parent" if os.fork() else "other half"


@app.task
def orphan() -> None:
    """Leave a grandchild that ends by itself, later than its parent."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            time.sleep(0.05)
        os._exit(0)
    os.wait()


@app.task
def scribble(rubbish: str) -> None:
    """Write to every socket, the worker's too."""
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, bytes.fromhex(rubbish))
        except OSError:
            continue
    time.sleep(60)


@app.task
def close_everything(size: int = 0) -> str:
    os.closerange(3, 256)
    return "x" * size


@app.task
def spend_descriptors(seconds: float) -> None:
    """Leave open as many as there may be."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)
    time.sleep(seconds)


_seized: list[socket.socket] = []


@app.task
def seize_everything(size: int = 0) -> str:
    """Close every descriptor, and keep sockets in their place."""
    os.closerange(3, 256)
    _seized.extend(itertools.chain.from_iterable(socket.socketpair() for _ in range(64)))
    return "x" * size


@app.task(memory="128MiB")
def grow(megabytes: int, seconds: float = 5.0) -> int:
    block = bytearray(megabytes * MIB)
    block[:: resource.getpagesize()] = b"x" * len(block[:: resource.getpagesize()])
    time.sleep(seconds)
    return len(block)


@app.task(memory="128MiB")
def grow_stubbornly(megabytes: int) -> None:
    """Grow, and catch everything, for ever."""
    while True:
        try:
            block = bytearray(megabytes * MIB)
            block[:: resource.getpagesize()] = b"x" * len(block[:: resource.getpagesize()])
            stubborn.function()
        except BaseException:
            traceback.format_exc()


@app.task(memory="128MiB")
def grow_below(megabytes: int) -> None:
    """The memory is used by a process of the task's."""
    process = multiprocessing.Process(target=grow.function, args=(megabytes, 60.0))
    process.start()
    process.join()


@app.task(memory="128MiB")
def share(megabytes: int, seconds: float = 0.5) -> int:
    """Fork processes that share one block: together they use it once."""
    block = bytearray(megabytes * MIB)
    block[:: resource.getpagesize()] = b"x" * len(block[:: resource.getpagesize()])
    started = []
    for _ in range(3):
        if not (pid := os.fork()):
            time.sleep(seconds)
            os._exit(0)
        started.append(pid)
    for pid in started:
        os.waitpid(pid, 0)
    return len(block)


@app.task(timeout=0.3)
def short_limit(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


_kept: list[bytearray] = []


@app.task
def keep(megabytes: int) -> int:
    """Leak."""
    block = bytearray(megabytes * MIB)
    block[:: resource.getpagesize()] = b"x" * len(block[:: resource.getpagesize()])
    _kept.append(block)
    return os.getpid()


# Output and surroundings


@app.task
def say(words: str, stream: str = "stderr") -> None:
    print(words, file=sys.stdout if stream == "stdout" else sys.stderr)


@app.task
def say_and_fail(words: str) -> None:
    print(words)
    raise ValueError("said")


@app.task
def flood(megabytes: int, then: int = 0) -> None:
    line = "x" * 127 + "\n"
    for _ in range(megabytes * MIB // 128):
        sys.stdout.write(line)
    raw = line.encode() * 512
    for number in range(megabytes * MIB // len(raw)):
        if then and number > 8:
            os.kill(os.getpid(), then)
        os.write(2, raw)


@app.task
def disturb() -> None:
    """Change everything that a later task might notice."""
    os.chdir("/")
    os.umask(0)
    os.environ["PGSCHED_TEST_DISTURBED"] = "1"
    os.environ.pop("HOME", None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU})
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    sys.setrecursionlimit(200)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    sys.stderr.close()
    random.seed(1)


@app.task
def surroundings() -> dict[str, Any]:
    umask = os.umask(0o22)
    os.umask(umask)
    sys.stderr.write("")
    return {
        "directory": os.getcwd(),
        "umask": umask,
        "variable": os.environ.get("PGSCHED_TEST_DISTURBED"),
        "home": os.environ.get("HOME"),
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
        "usr1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "recursion": sys.getrecursionlimit(),
        "stdout": sys.stdout is sys.__stdout__,
        "random": random.random(),
    }


@app.task
def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


@app.task
def identity() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "group": os.getpgid(0),
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS"),
        "dsn": app._dsn,
        "argv": Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(),
        "environment": Path("/proc/self/environ").read_bytes().replace(b"\0", b" ").decode(errors="replace"),
        "random": random.random(),
        "name": Path("/proc/self/comm").read_text().strip(),
    }
