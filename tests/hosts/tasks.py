"""The app of the tests on several hosts. Imported by workers only.

Tasks note in files when they ran: a file is written whatever becomes of the wire.
"""

import os
import socket
import time
from pathlib import Path

from pgsched import App, Retry, current_task
from tests.audit import entry

NOTES = "PGSCHED_TEST_NOTES"
"""The variable that names the directory for such files."""

app = App()
at_once = Retry(max=100, base=0.0, cap=0.0)


@app.task(retry=at_once)
def work(first: float, again: str | None = None, fails: bool = False) -> str:
    """Says where it ran, and notes all the time that it does.

    :param first: seconds that the first attempt takes.
    :param again: each later one goes on until this file is there.
    :param fails: the first attempt raises at its end.
    """
    task = current_task()
    until = time.monotonic() + first
    note = Path(os.environ[NOTES]) / f"{task.id} {task.attempt} {socket.gethostname()}"
    with entry(), note.open("a") as file:
        while True:
            file.write(f"{time.monotonic()}\n")
            file.flush()
            if Path(again or "/").exists() if task.attempt > 1 else time.monotonic() >= until:
                break
            time.sleep(0.01)
        if fails and task.attempt == 1:
            raise ValueError("no")
    return socket.gethostname()


@app.task(retry=0)
def meet(others: int, place: str) -> str:
    """Ends when so many run at the same time, itself included."""
    Path(place).mkdir(exist_ok=True)
    with entry():
        (Path(place) / str(current_task().id)).touch()
        while len(os.listdir(place)) < others:
            time.sleep(0.01)
    return socket.gethostname()
