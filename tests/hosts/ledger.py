"""What must hold of the tasks of a test, whatever was done to the wires meanwhile."""

import itertools
from pathlib import Path
from typing import NamedTuple

from tests.audit import Audit
from tests.history import History
from tests.support import Server


class Run(NamedTuple):
    """One execution. Times are monotonic, and the machine's: the same for all hosts."""

    task_id: int
    attempt: int
    host: str
    began: float
    last_seen: float


class Ledger:
    """Everything that was executed and written in one test's database."""

    def __init__(self, server: Server, dsn: str, notes: Path, audit: Audit) -> None:
        self._server = server
        self._dsn = dsn
        self._notes = notes
        self._audit = audit
        self.history = History(server, dsn)

    def runs(self, task_id: int | None = None) -> list[Run]:
        """Executions of `work` by their beginning."""
        found = []
        for note in self._notes.iterdir():
            task, attempt, host = note.name.split()
            beats = [float(line) for line in note.read_text().splitlines()]
            if beats and task_id in (None, int(task)):
                found.append(Run(int(task), int(attempt), host, beats[0], beats[-1]))
        return sorted(found, key=lambda run: run.began)

    def check(self, ids: list[int]) -> None:
        """All have ended well; nothing ran at two places at once, nor ended twice, nor more often than it may."""
        assert set(self.history.settles().values()) == {1}, self.history.changes()
        executions = self._audit.executions()
        rows = self._server.sql(
            "SELECT task.id, task.status, task.retry_count, task.result, supervisor.host FROM scheduled_tasks AS task"
            " LEFT JOIN pgsched_supervisors AS supervisor ON supervisor.id = task.claimed_by WHERE task.id = ANY (%s)",
            ids,
            dsn=self._dsn,
        )
        assert len(rows) == len(ids)
        for task_id, status, retry_count, result, owner in rows:
            runs = self.runs(task_id)
            assert status == "completed"
            assert result in {run.host for run in runs}
            assert owner in (None, result), "who settled it did not run it"
            assert executions[task_id] == len(runs) <= retry_count + 1
            for one, other in itertools.pairwise(runs):
                assert one.last_seen < other.began, "it ran at two places at once"
