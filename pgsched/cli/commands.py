"""The group of all commands."""

import click

from pgsched import __version__
from pgsched.cli.change import cancel, prune, retry
from pgsched.cli.demo import demo
from pgsched.cli.enqueue import enqueue
from pgsched.cli.look import show, status, tasks
from pgsched.cli.options import Group
from pgsched.cli.run import run
from pgsched.cli.scale import scale
from pgsched.cli.setup import check, migrate
from pgsched.cli.systemd import systemd


@click.group("pgsched", cls=Group)
@click.version_option(__version__, message="%(prog)s %(version)s")
def pgsched() -> None:
    """Run CPU-heavy Python tasks that live in PostgreSQL.

    Nearly every option is also an environment variable, the same for all commands: --poll-interval is
    PGSCHED_POLL_INTERVAL.

    Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 database, 4 schema, 5 APP, 6 workers cannot start,
    7 stopped by a second signal, 70 internal error, 130 Ctrl-C.
    """


for command in (run, scale, demo, migrate, check, enqueue, status, tasks, show, retry, cancel, prune, systemd):
    pgsched.add_command(command)
