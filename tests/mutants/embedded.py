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
)
