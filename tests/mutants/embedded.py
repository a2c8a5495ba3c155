"""The guards of the embedded server: whose server it is, who uses it, and when it ends."""

from typing import Final

from tests.mutants.mutant import Mutant

SERVER: Final = "system/test_embedded.py"

EMBEDDED: Final = (
    Mutant(
        "embedded-copy",
        "ops/cluster.py",
        "if noted is not None and noted.data.samefile(self.data) else None",
        "if noted is not None else None",
        f"{SERVER}::test_a_copy_of_a_directory_in_use_gets_a_server_of_its_own",
    ),
    Mutant(
        "embedded-stale-pid",
        "ops/cluster.py",
        '        (self.data / "postmaster.pid").unlink(missing_ok=True)\n',
        "",
        f"{SERVER}::test_stale_files_whose_pid_belongs_to_somebody_else_now",
    ),
    Mutant(
        "embedded-stale-lock",
        "ops/cluster.py",
        '        (socket_directory / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)\n',
        "",
        f"{SERVER}::test_stale_files_whose_pid_belongs_to_somebody_else_now",
    ),
    Mutant(
        "embedded-unlock",
        "ops/locks.py",
        "            fcntl.flock(descriptor, fcntl.LOCK_UN)\n",
        "            pass\n",
        f"{SERVER}::test_a_forked_process_does_not_keep_the_locks",
    ),
    Mutant(
        "embedded-fork",
        "ops/locks.py",
        "os.register_at_fork(after_in_child=_abandon_all)\n",
        "",
        f"{SERVER}::test_the_forked_child_of_a_killed_user_does_not_keep_the_server",
    ),
    Mutant(
        "embedded-recovery",
        "ops/embedded.py",
        " is not None and not endpoint.starting:\n",
        " is not None:\n",
        f"{SERVER}::test_a_recovery_that_outlasts_its_starter_goes_on",
    ),
    Mutant(
        "embedded-owner",
        "ops/wheel.py",
        '        data = (place / "data").stat()\n',
        "        raise OSError\n",
        f"{SERVER}::TestAsRoot::test_data_keep_their_user",
    ),
    Mutant(
        "embedded-home",
        "ops/wheel.py",
        'Path("/var/lib/pgsched-embedded")',
        'Path("/var/lib/pgsched")',
        "unit/test_wheel.py::test_systemd_does_not_give_roots_place_to_a_units_user",
    ),
    Mutant(
        "embedded-peer",
        "ops/cluster.py",
        "                if peer not in (user, os.geteuid()):\n                    return False\n",
        "",
        f"{SERVER}::TestAsRoot::test_a_stranger_on_the_servers_socket_is_not_believed",
    ),
    Mutant(
        "embedded-busy-peer",
        "ops/cluster.py",
        "                if address.stat().st_uid != user:\n                    return False\n",
        "",
        f"{SERVER}::TestAsRoot::test_a_stranger_on_the_servers_socket_is_not_believed",
    ),
)
