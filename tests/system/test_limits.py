"""Deaths and limits: what kills a worker costs its task one attempt, at once, and leaves a full record."""

import pytest

from tests.audit import Audit
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Failure, Rows
from tests.system.tasks import LIMIT, MIB

APP = "tests.system.tasks:app"
GRACE = 5.0
"""Seconds that a task has between the soft signal and SIGKILL."""
GROWS = 1.0
"""Seconds that it takes to use too much memory, and to be killed half a second later."""
PROMPT = 10.0
"""Seconds; a tenth of one is usual, but the machine may be busy. What is late waits for the poll interval, a minute."""


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def seconds_from_death(failure: Failure, started: float) -> float:
    """How long after the worker's end, or the limit, the attempt was settled. The entry was made just before."""
    lived = {"timed_out": LIMIT + (GRACE if failure.signal else 0.0), "over_memory": GROWS}
    return failure.failed_at - started - lived.get(failure.outcome, 0.0)


@pytest.mark.unpooled
@pytest.mark.parametrize(
    ("way", "outcome", "signal", "exit_code", "words"),
    [
        ("kill", "crashed", 9, None, "killed by signal 9 (SIGKILL)"),
        ("segfault", "crashed", 11, None, "killed by signal 11 (SIGSEGV)"),
        ("exit", "crashed", None, 3, "exited with code 3"),
        ("oversleep", "timed_out", None, None, "timed out after 2 s"),
        ("oversleep in C", "timed_out", 9, None, "timed out after 2 s"),
        ("grow", "over_memory", None, None, "over memory"),
    ],
)
def test_f65_an_end_of_any_kind_costs_one_attempt_at_once(
    rows: Rows,
    pgsched_cli: CommandLine,
    audit: Audit,
    way: str,
    outcome: str,
    signal: int | None,
    exit_code: int | None,
    words: str,
) -> None:
    # In C the interpreter never gets to raise anything, and the grace period has to pass: once is enough.
    retries = 0 if way == "oversleep in C" else 1
    [victim] = rows.add("doomed", {"ways": [way]}, max_retries=retries)
    # Nothing may have to wait for the next look.
    command = pgsched_cli("run", APP, "--processes", "1", "--poll-interval", "60")
    rows.all_ended()

    row, failures, entries = rows.row(victim), rows.failures(victim), audit.entries(victim)
    assert (row.status, row.retry_count) == ("failed", retries)
    assert row.error_log is not None
    assert words in row.error_log
    assert len(failures) == len(entries) == retries + 1
    for number, (failure, entry) in enumerate(zip(failures, entries, strict=True), start=1):
        assert (failure.attempt, failure.outcome) == (number, outcome)
        # A worker that cannot heed the soft signal in time, because it still grows, is killed.
        assert failure.signal == signal or (way == "grow" and failure.signal == 9)
        assert failure.exit_code == exit_code
        assert words in failure.error
        assert failure.cpu_seconds is not None
        assert 0.05 <= failure.cpu_seconds < 10
        assert failure.peak_memory is not None
        assert failure.peak_memory > (256 * MIB if way == "grow" else 4 * MIB)
        if outcome == "crashed":
            assert failure.stderr is not None
            # What the interpreter says of a segmentation fault leaves no room for more.
            assert ("in fail" if way == "segfault" else f"about to {way}") in failure.stderr
        if outcome in ("timed_out", "over_memory"):
            assert failure.stack is not None
            assert "in fail" in failure.stack
            assert "in doomed" in failure.stack
        late = seconds_from_death(failure, entry.started)
        print(f"{way}: settled {late * 1000:.0f} ms after the end")
        assert late < PROMPT
    if retries:
        again = entries[1].started - failures[0].failed_at
        print(f"{way}: started again {again * 1000:.0f} ms later")
        assert again < PROMPT

    [healthy] = rows.add("nap")
    eventually(lambda: rows.row(healthy).status == "completed", "the slot is filled again")
    assert command.running


def test_a_death_disturbs_no_neighbour(rows: Rows, pgsched_cli: CommandLine, audit: Audit) -> None:
    rows.add("doomed", {"ways": ["kill", "segfault", "exit"]}, count=3, max_retries=2)
    healthy = rows.add("nap", {"seconds": 0.3}, count=10)
    pgsched_cli("run", APP, "--processes", "2")
    rows.all_ended()
    assert rows.count("status = 'failed' AND retry_count = 2 AND task_type = 'doomed'") == 3
    assert rows.count("status = 'completed' AND retry_count = 0 AND task_type = 'nap'") == 10
    assert {task_id: audit.executions()[task_id] for task_id in healthy} == dict.fromkeys(healthy, 1)
