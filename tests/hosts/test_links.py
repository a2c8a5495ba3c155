"""The wire between a host and the database is cut, or loses everything in silence, and is mended again."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audit import Audit
from tests.hosts.conftest import HOSTS, Start
from tests.hosts.ledger import Ledger
from tests.hosts.network import Network
from tests.support import Server, database_of, eventually
from tests.system.rows import Rows

pytestmark = pytest.mark.slow
OPTIONS = ("--lease", "4", "--reap-interval", "0.5", "--poll-interval", "0.5", "--db-timeout", "1")
HARM: list[Callable[[Network, str], None]] = [Network.cut, Network.silence]


@pytest.mark.parametrize("harm", HARM, ids=["cut", "silent"])
def test_who_is_cut_off_stops_in_time_and_comes_back_by_itself(
    harm: Callable[[Network, str], None],
    network: Network,
    start: Start,
    rows: Rows,
    ledger: Ledger,
    audit: Audit,
    tmp_path: Path,
) -> None:
    ash = start("ash", "--processes", "1", *OPTIONS)
    [task_id] = rows.add("work", {"first": 60})
    eventually(audit.entries, "it runs")
    birch = start("birch", "--processes", "1", *OPTIONS)
    harm(network, "ash")
    ash.wait_for("lease_lost")
    rows.all_ended()
    assert [run.host for run in ledger.runs(task_id)] == ["ash", "birch"]
    assert [failure.outcome for failure in rows.failures(task_id)] == ["lost"]
    ledger.check([task_id])
    network.mend("ash")
    ash.wait_for(" registered ", after=1)
    # One slot each: only together do they come to an end.
    together = rows.add("meet", {"others": 2, "place": str(tmp_path / "meeting")}, count=2)
    rows.all_ended()
    assert {rows.row(each).result for each in together} == set(HOSTS)
    assert (ash.running, ash.err.count("lease_lost"), birch.err.count("lease_lost")) == (True, 1, 0), ash
    assert "Traceback" not in ash.err, ash


@pytest.mark.parametrize(
    ("fails", "settle"), [(False, "task.ctid = verdict.place"), (True, "json_to_record")], ids=["completed", "failed"]
)
def test_what_the_network_delivers_late_changes_nothing(
    fails: bool,
    settle: str,
    network: Network,
    start: Start,
    rows: Rows,
    ledger: Ledger,
    audit: Audit,
    server: Server,
    dsn: str,
    place: Path,
    tmp_path: Path,
) -> None:
    """The settle is sent into a silent wire; when that is mended, the kernel sends it again, whoever lives by then."""
    server.sql(f"ALTER DATABASE \"{database_of(dsn)}\" SET log_statement = 'all'")
    log, gate = place / "server/data/server.log", tmp_path / "gate"
    # No look for tasks may be under way, for which the settle would wait; and it must not be given up too soon.
    # The lease is trusted until the task has ended, which runs when the wire falls silent.
    ash = start("ash", "--processes", "1", *OPTIONS, "--poll-interval", "100", "--db-timeout", "30", "--lease", "8")
    # Nothing but a hint wakes it.
    eventually(lambda: server.value("SELECT bool_and(listening) FROM pgsched_supervisors", dsn=dsn), "it can be woken")
    [task_id] = rows.add("work", {"first": 3.0, "again": str(gate), "fails": fails})
    eventually(audit.entries, "it runs")
    network.silence("ash")
    ash.tell(signal.SIGTERM)
    birch = start("birch", "--processes", "1", *OPTIONS)
    eventually(lambda: len(audit.entries()) == 2, "it was taken over")
    before = log.stat().st_size
    network.mend("ash")

    def arrived() -> bool:
        told = re.split(r"^(?=\d{4}-)", log.read_text(errors="replace")[before:], flags=re.MULTILINE)
        return any(f"pgsched work {network.address('ash')} LOG:  execute" in each and settle in each for each in told)

    eventually(arrived, "the late settle is executed")
    gate.touch()
    rows.all_ended()
    assert [run.host for run in ledger.runs()] == ["ash", "birch"]
    assert [failure.outcome for failure in rows.failures(task_id)] == ["lost"]
    ledger.check([task_id])
    assert "fenced" not in birch.err, birch


def test_a_wire_that_comes_and_goes_costs_time_and_no_attempt(
    network: Network, start: Start, rows: Rows, ledger: Ledger, audit: Audit
) -> None:
    """Each time it is back before the lease has run out."""
    commands = [start(host, "--processes", "2", *OPTIONS, "--lease", "60") for host in HOSTS]
    ids: list[int] = []

    def more_from(host: str) -> None:
        """Wait until so many more tasks of a host were ended and written."""
        count = f"status = 'completed' AND result = '\"{host}\"'"
        wanted = rows.count(count) + 5

        def ended() -> bool:
            if rows.count("status = 'queued'") < 10:
                ids.extend(rows.add("work", {"first": 0.05}, count=10))
            return rows.count(count) >= wanted

        eventually(ended, f"{host} works", every=0.05)

    for harm in HARM * 3:
        more_from("ash")
        harm(network, "ash")
        more_from("birch")
        network.mend("ash")
    more_from("ash")
    rows.all_ended()
    ledger.check(ids)
    assert audit.executions() == dict.fromkeys(ids, 1)
    assert rows.count("retry_count > 0") == 0
    for command in commands:
        command.tell(signal.SIGTERM)
        assert command.wait().code == 0, command
        assert command.err.count(" registered ") == 1, command
        assert "Traceback" not in command.err, command
