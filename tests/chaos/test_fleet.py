"""Which ends of a supervisor a storm explains."""

import signal

import pytest

from tests.chaos.fleet import accepted


@pytest.mark.parametrize(
    ("code", "err", "expected"),
    [
        (0, "", True),
        (3, "pgsched: no server", True),
        (-signal.SIGKILL, "", True),
        (-signal.SIGTERM, "", True),
        (-signal.SIGTERM, "INFO state state=running", False),
        (6, "pgsched: the worker was killed by signal 9 (SIGKILL) before it was ready", True),
        (6, "pgsched: the worker ended with exit code 1 before it was ready", False),
        (1, "", False),
        (-signal.SIGSEGV, "", False),
    ],
)
def test_supervisors_end_as_a_storm_ends_them(code: int, err: str, expected: bool) -> None:
    assert accepted(code, err) is expected
