"""Supervisors on several hosts share a table, and know each other for what they are."""

import signal
from pathlib import Path

import pytest

from tests.audit import Audit
from tests.hosts.conftest import HOSTS, Start
from tests.hosts.ledger import Ledger
from tests.hosts.network import Network
from tests.support import Server, eventually
from tests.system.rows import Rows

pytestmark = pytest.mark.slow
NEVER_ASKS = "from pgsched.store import listening\n\nlistening.SILENCE = 3600.0\n"
"""A module that Python imports first of all."""
OPTIONS = ("--lease", "4", "--reap-interval", "0.5", "--poll-interval", "0.5", "--db-timeout", "1")


def test_all_slots_of_all_hosts_work_at_once(
    start: Start, rows: Rows, audit: Audit, server: Server, dsn: str, tmp_path: Path
) -> None:
    for host in HOSTS:
        start(host, "--processes", "2")
    ids = rows.add("meet", {"others": 4, "place": str(tmp_path / "meeting")}, count=4)
    rows.all_ended()
    assert len({entry.task_id for entry in audit.entries()}) == 4
    assert sorted(rows.row(task_id).result for task_id in ids) == sorted(HOSTS * 2)
    known = server.sql("SELECT host, boot_id, pid_namespace, pid FROM pgsched_supervisors ORDER BY host", dsn=dsn)
    (ash, ash_boot, ash_namespace, ash_pid), (birch, birch_boot, birch_namespace, birch_pid) = known
    assert (ash, birch) == HOSTS
    assert ash_boot != birch_boot
    assert ash_namespace != birch_namespace
    assert ash_pid == birch_pid == 1


@pytest.mark.parametrize(
    ("own_boot", "own_pids"), [(True, False), (False, True)], ids=["machines", "containers on a machine"]
)
def test_a_host_that_dies_is_given_its_lease(
    own_boot: bool, own_pids: bool, start: Start, rows: Rows, audit: Audit, ledger: Ledger, server: Server, dsn: str
) -> None:
    """Its process is not to be found here, which says nothing: it would not be, if it were well."""
    ash = start("ash", "--processes", "1", *OPTIONS, own_boot=own_boot, own_pids=own_pids)
    [task_id] = rows.add("work", {"first": 60})
    eventually(audit.entries, "it runs")
    start("birch", "--processes", "1", *OPTIONS, own_boot=own_boot, own_pids=own_pids)
    ash.close()
    lease = "SELECT extract(epoch FROM lease_until)::float8 FROM pgsched_supervisors WHERE host = 'ash'"
    until = server.value(lease, dsn=dsn)
    rows.all_ended()
    assert audit.entries()[-1].started > until
    ledger.check([task_id])


def test_a_queue_waits_for_its_host_and_others_do_not(
    network: Network, start: Start, rows: Rows, ledger: Ledger, audit: Audit
) -> None:
    ash = start("ash", "--processes", "1", "--queues", "images", *OPTIONS)
    start("birch", "--processes", "1", "--queues", "mail,default", *OPTIONS)
    [image] = rows.add("work", {"first": 60}, queue="images")
    eventually(audit.entries, "it runs")
    network.cut("ash")
    eventually(lambda: rows.row(image)[:2] == ("queued", 1), "birch has taken it from ash")
    mail = rows.add("work", {"first": 0.05}, queue="mail", count=5)
    eventually(lambda: rows.count("status = 'completed'") == 5, "birch does what is its own")
    assert rows.row(image).status == "queued"
    network.mend("ash")
    rows.all_ended()
    assert {run.host for run in ledger.runs(image)} == {"ash"}
    assert {run.host for run in ledger.runs() if run.task_id != image} == {"birch"}
    ledger.check([image, *mail])
    assert ash.err.count("lease_lost") == 1, ash


@pytest.mark.parametrize("keepalives", [True, False], ids=["by the kernel", "by asking"])
def test_a_listener_that_was_lost_in_silence_is_noticed(
    keepalives: bool, network: Network, start: Start, rows: Rows, audit: Audit, server: Server, dsn: str, tmp_path: Path
) -> None:
    """Nothing but a hint, or the look of a new listener, can find the task within the poll interval."""
    if keepalives:
        (tmp_path / "sitecustomize.py").write_text(NEVER_ASKS)
    options = ("--lease", "100", "--reap-interval", "100", "--poll-interval", "100", "--db-timeout", "1")
    ash = start("ash", "--processes", "1", *options, keepalives=keepalives)

    def listener() -> tuple[int, int] | None:
        found = server.sql(
            "SELECT pid, client_port FROM pg_stat_activity WHERE application_name = 'pgsched listen'"
            " AND datname = current_database() ORDER BY backend_start DESC LIMIT 1",
            dsn=dsn,
        )
        return found[0] if found else None

    pid, port = eventually(listener, "it listens")  # type: ignore[misc]
    [first] = rows.add("work", {"first": 0})
    eventually(lambda: rows.row(first).status == "completed", "the hint was heard")
    network.lose("ash", port)
    [task_id] = rows.add("work", {"first": 0})
    eventually(lambda: (found := listener()) and found[0] != pid, "it listens anew", timeout=40)
    eventually(lambda: rows.row(task_id).status == "completed", "it has looked for what it had missed")
    assert set(audit.executions().values()) == {1}
    assert ash.err.count(" registered ") == 1, ash
    ash.tell(signal.SIGTERM)
    assert ash.wait().code == 0, ash
