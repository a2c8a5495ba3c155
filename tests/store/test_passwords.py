"""One password for all who ask at once, another for who comes later or was refused."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from pgsched.dsn import PASSWORD_COMMAND, PASSWORD_FROM
from pgsched.errors import DatabaseError, UsageError
from pgsched.store import redaction
from pgsched.store.connection import connect, connect_sync
from pgsched.store.passwords import REUSE_SECONDS, Asked, Command, Function, Passwords, passwords
from tests.support import ROOT, eventually, gone, processes


class Asking:
    """Numbers what is asked for, and takes its time when it is told to."""

    def __init__(self) -> None:
        self.number = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def ask(self, seconds: float) -> str:
        assert self.go_on.wait(10)
        self.number += 1
        return f"password {self.number}"

    def give_up(self) -> None:
        self.go_on.set()


@pytest.fixture
def asking() -> Asking:
    return Asking()


async def test_who_asks_at_once_gets_the_same(asking: Asking) -> None:
    source = Passwords(asking)
    asking.go_on.clear()
    waiting = [asyncio.create_task(asyncio.to_thread(source.get, 10.0)) for _ in range(4)]
    await asyncio.sleep(0)
    asking.go_on.set()
    answers = await asyncio.gather(*waiting)
    assert {answer.text for answer in answers} == {"password 1"}
    assert sorted(answer.fresh for answer in answers) == [False, False, False, True]


def test_who_comes_later_gets_another(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    source = Passwords(asking)
    assert source.get(1) == Asked("password 1", fresh=True)
    now += REUSE_SECONDS - 0.1
    assert source.get(1) == Asked("password 1", fresh=False)
    now += 0.2
    assert source.get(1) == Asked("password 2", fresh=True)


def test_one_that_was_refused_is_not_used_again(asking: Asking) -> None:
    source = Passwords(asking)
    first, again = source.get(1), source.get(1)
    assert source.refused(again), "it was not made for this attempt, so another one may be better"
    second = source.get(1)
    assert second == Asked("password 2", fresh=True)
    assert not source.refused(first._replace(fresh=True)), "a fresh one was refused: the next one would be too"
    assert source.get(1) == Asked("password 2", fresh=False), "an old one was refused, and not this"


async def test_a_server_that_is_away_refuses_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv(PASSWORD_COMMAND, f"sh -c 'echo >>{calls}; echo s3cr3t'")
    for _ in range(3):
        with pytest.raises(DatabaseError, match="refused"):
            await connect("host=127.0.0.1 port=1", timeout=2)
        with pytest.raises(DatabaseError, match="refused"):
            connect_sync("host=127.0.0.1 port=1", timeout=2)
    assert calls.read_text() == "\n"


async def test_who_is_cancelled_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_COMMAND, "sleep 61")

    def sleeping() -> list[int]:
        return [found.pid for found in processes() if found.command == "sleep 61" and found.parent == os.getpid()]

    call = asyncio.create_task(connect("host=127.0.0.1 port=1", timeout=60))
    [pid] = await asyncio.to_thread(eventually, sleeping)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.to_thread(eventually, lambda: gone(pid))


async def test_who_shares_what_somebody_else_gives_up_is_told_so() -> None:
    """It is nobody's failure, and not the kernel that has killed it."""
    command = Command(["sleep", "63"], "it")
    source = Passwords(command)
    calls = [asyncio.create_task(asyncio.to_thread(source.get, 60)) for _ in range(2)]
    await asyncio.to_thread(eventually, lambda: command._process)
    source.give_up()
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, DatabaseError)
        assert str(error) == "it was given up before it gave a password"


def test_an_agent_that_stays_delays_nobody() -> None:
    """It has the pipes open for as long as it lives, which is not long: it is in the same group."""
    began = time.monotonic()
    assert Command(["sh", "-c", "sleep 62 & echo s3cr3t"], "it").ask(30) == "s3cr3t"
    assert time.monotonic() - began < 20
    eventually(lambda: "sleep 62" not in [found.command for found in processes() if not found.dead])


def test_what_a_function_prints_is_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noisy.py").write_text("print('no')\ndef token():\n    print('nor this')\n    return 's3cr3t'\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
    source = passwords({PASSWORD_FROM: "noisy:token"})
    assert source is not None
    assert source.get(20).text == "s3cr3t"


def test_what_is_printed_without_end_is_given_up() -> None:
    with pytest.raises(DatabaseError, match="gave no password within 1 s"):
        Command(["yes"], "it").ask(1)


def test_a_child_of_a_program_has_questions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_COMMAND, "echo s3cr3t")
    source = passwords()
    assert source is not None
    assert source is passwords()
    with source._lock:
        child = os.fork()
        if not child:
            other = passwords()
            os._exit(0 if other is not None and other.get(5).text == "s3cr3t" else 1)
        _, status = os.waitpid(child, 0)
    assert status == 0


def test_without_a_variable_nobody_is_asked() -> None:
    assert passwords({}) is None
    with pytest.raises(UsageError, match="is empty"):
        passwords({PASSWORD_COMMAND: " "})


def test_a_function_that_returns_no_text() -> None:
    with pytest.raises(DatabaseError, match=r"App\(password\) returned NoneType"):
        Function(lambda: None).ask(1)  # type: ignore[arg-type,return-value]


def test_the_last_passwords_are_taken_out_and_others_forgotten() -> None:
    for number in range(100):
        redaction.remember_for_now(f"t0ken-{number}.")
    assert redaction.redact("it says t0ken-99.") == "it says ***"
    assert redaction.redact("it says t0ken-1.") == "it says t0ken-1."
