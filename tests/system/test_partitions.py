"""``pgsched migrate --partitions`` and ``pgsched run --partitions``, as a user gives them."""

import os
import signal

import pytest

from tests.audit import Audit
from tests.support import Server, eventually
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

APP = "tests.system.tasks:app"


@pytest.fixture
def rows(server: Server, dsn: str) -> Rows:
    return Rows(server, dsn)


def test_two_supervisors_share_four_partitions_and_the_third_is_missed(
    rows: Rows, server: Server, dsn: str, pgsched_cli: CommandLine, audit: Audit
) -> None:
    ids = rows.add("nap", {"seconds": 0.0}, count=40)
    assert pgsched_cli.run("migrate", "--partitions", "4").out.splitlines()[-1] == (
        "moved 40 live tasks from one table to 4 partitions"
    )
    first = pgsched_cli("run", APP, "--processes", "1", "--partitions", "0-1")
    second = pgsched_cli("run", APP, "--processes", "1", environment={"PGSCHED_PARTITIONS": "3"})
    eventually(lambda: rows.count("status = 'completed'") == 30, "three quarters are done")
    by_partition = server.sql(
        "SELECT claimed_by, array_agg(DISTINCT id % 4 ORDER BY id % 4) FROM scheduled_tasks"
        " WHERE status = 'completed' GROUP BY 1",
        dsn=dsn,
    )
    assert sorted(parts for _, parts in by_partition) == [[0, 1], [3]]
    status = pgsched_cli.run("status").out
    assert "no live supervisor serves partition 2" in status
    assert "serves partition 1" not in status
    assert "no live supervisor serves partition 2" in pgsched_cli.run("check").out
    # A new task of theirs is heard of as ever; and what they hold survives the way back to one table.
    assert pgsched_cli.run("migrate", "--partitions", "1").code == 0
    for command in (first, second):
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait().code == 0
    third = pgsched_cli("run", APP, "--processes", "1")
    # The first one may have found the rest in its partition 0 before it stopped.
    third.wait_for("registered")
    eventually(lambda: rows.count("status = 'completed'") == 40, "all are done")
    os.kill(third.pid, signal.SIGTERM)
    assert third.wait().code == 0
    assert set(audit.executions()) == set(ids)


def test_a_partition_that_is_not_there(pgsched_cli: CommandLine) -> None:
    ended = pgsched_cli.run("run", APP, "--partitions", "0-3")
    assert ended.code == 2
    assert ended.err == (
        "pgsched: --partitions 3: there is 1 partition, from 0 on; `pgsched migrate --partitions` makes others\n"
    )


@pytest.mark.parametrize("number", ["0", "257", "x"])
def test_a_number_of_partitions_that_makes_no_sense(pgsched_cli: CommandLine, number: str) -> None:
    ended = pgsched_cli.run("migrate", "--partitions", number)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--partitions" in ended.err
