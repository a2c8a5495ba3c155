"""The commands of docs/tuning.md do what it says."""

import os
import re
import shlex
import signal
import socket

from pgsched.quantities import available_cpus
from tests.command import Command
from tests.support import ROOT
from tests.system.conftest import CommandLine

TEXT = (ROOT / "docs/tuning.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
SAYS = {
    "pgsched scale 4": "(INFO|WARNING) resized processes=4 before=2",
    "pgsched scale 3 --supervisor $HOSTNAME": "resized processes=3 before=4",
    "kill -TTIN $PID": "resized processes=4 before=3",
    "kill -TTOU $PID": "resized processes=3 before=4",
    "kill -HUP $PID": "reload_finished",
}
"""What the supervisor's log then says."""
APP = """
from pgsched import App

app = App()

@app.task
def nothing() -> None: ...
"""


def test_each_command(pgsched_cli: CommandLine) -> None:
    pgsched_cli.module("tasks", APP)
    first, *others = COMMANDS
    supervisor = pgsched_cli(*shlex.split(first)[1:])
    supervisor.wait_for("registered")
    assert others == list(SAYS)
    seen: dict[str, int] = {}
    for command in others:
        run(command, pgsched_cli, supervisor)
        supervisor.wait_for(SAYS[command], after=seen.get(SAYS[command], 0))
        seen[SAYS[command]] = 1
    assert len(re.findall("(INFO|WARNING) resized", supervisor.err)) == 4
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait(20).code == 0, supervisor


def run(command: str, pgsched_cli: CommandLine, supervisor: Command) -> None:
    program, *arguments = shlex.split(command.replace("$HOSTNAME", socket.gethostname()))
    if program == "pgsched":
        assert pgsched_cli.run(*arguments).code == 0
    else:
        os.kill(supervisor.pid, signal.Signals[f"SIG{arguments[0].lstrip('-')}"])


def test_the_warning_is_as_it_is_shown(pgsched_cli: CommandLine) -> None:
    [shown] = re.findall(r"^pgsched: warning: .*$", TEXT, re.MULTILINE)
    pgsched_cli.module("tasks", APP)
    cpus = available_cpus()
    supervisor = pgsched_cli("run", "tasks:app", "--processes", str(cpus + 1))
    supervisor.wait_for("registered")
    supervisor.signal(signal.SIGTERM)
    assert shown.replace("16", str(cpus + 1)).replace("8", str(cpus)) in supervisor.wait(20).err.splitlines()
