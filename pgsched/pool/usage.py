"""What slots and tasks have used since the pool was made: time in work by slot, processor time by task type.

Each datagram of a worker tells what it has used so far, so that knowing costs it nothing; of several tiny tasks in one,
each type gets its share by their run times. Runs in the parent.
"""

from collections import defaultdict
from collections.abc import Sequence

from pgsched.model import Claim, Outcome


class Usage:
    """The books of one pool; they stay when slots go."""

    def __init__(self) -> None:
        self.busy: defaultdict[int, float] = defaultdict(float)
        """Seconds by slot in which a worker had tasks, but for the row of tasks that it has now."""
        self.cpu: defaultdict[str, float] = defaultdict(float)
        """Seconds by task type: of workers and their ended children, and of what lies between two tasks."""

    def charge(self, ended: Sequence[tuple[Claim, Outcome]], cpu_seconds: float) -> None:
        """Enter what a worker has used for these tasks."""
        if not ended:
            return
        first = ended[0][0].task_type
        if all(claim.task_type == first for claim, _ in ended):
            self.cpu[first] += cpu_seconds
            return
        whole = sum(outcome.seconds for _, outcome in ended)
        for claim, outcome in ended:
            self.cpu[claim.task_type] += cpu_seconds * (outcome.seconds / whole if whole else 1 / len(ended))


class Meter:
    """What the workers of one slot use."""

    def __init__(self, number: int, usage: Usage) -> None:
        self._number = number
        self._usage = usage
        self._since = 0.0
        self.cpu_before = 0.0
        """What the present worker had used when it reported last."""
        self._owed: list[tuple[Claim, Outcome]] = []
        """Tasks that are over and of which nobody has said yet what they used."""

    def began(self, now: float) -> None:
        """The worker has tasks again."""
        self._since = now

    def rested(self, now: float) -> None:
        """It has ended the last of them."""
        self._usage.busy[self._number] += max(now - self._since, 0.0)

    def salvaged(self, ended: Sequence[tuple[Claim, Outcome]]) -> None:
        """Tasks are over; what they have used comes with the worker's next datagram, or its death."""
        self._owed += ended

    def reported(self, ended: Sequence[tuple[Claim, Outcome]], cpu_seconds: float) -> None:
        """Tasks are over, and it has used so much since its birth."""
        self._usage.charge([*self._owed, *ended], max(cpu_seconds - self.cpu_before, 0.0))
        self._owed.clear()
        self.cpu_before = cpu_seconds

    def busy_seconds(self, now: float, *, at_work: bool) -> float:
        """In which they had tasks, up to now."""
        return self._usage.busy[self._number] + (now - self._since if at_work else 0.0)
