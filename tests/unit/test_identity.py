"""Which supervisor a process is, and when another one is known to be dead."""

import os
import subprocess
import sys

import pytest

from pgsched.pool.limits import entry
from pgsched.supervisor import identity
from pgsched.supervisor.identity import identify, is_gone


def me() -> tuple[int, int]:
    who = identify(1, (), (), "0")
    return who.pid, who.started_ticks


def test_a_living_process_is_told_from_a_later_one_with_its_pid() -> None:
    pid, ticks = me()
    assert pid == os.getpid()
    assert not is_gone(pid, ticks)
    assert is_gone(pid, ticks - 1)


def test_a_zombie_and_a_collected_process_are_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    found = entry(process.pid)
    assert found is not None
    assert is_gone(process.pid, found.started_ticks), "it is a zombie now"
    process.wait()
    assert is_gone(process.pid, found.started_ticks)


@pytest.mark.parametrize("refusal", [None, PermissionError])
def test_a_process_that_proc_hides_is_not_taken_for_dead(
    refusal: type[OSError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, number: int) -> None:
        if refusal is not None:
            raise refusal

    monkeypatch.setattr(identity, "entry", lambda pid: None)
    monkeypatch.setattr(os, "kill", kill)
    assert not is_gone(12345, 1)
