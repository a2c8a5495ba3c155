"""What must hold, told from the answers that supervisors get: plain Python, no database.

The oracle keeps what every write that the database accepted amounts to, and time as the database's clock has it. It
does not know how a statement is made; it knows who may write what, and says by name which promise an answer breaks.
"""

from dataclasses import dataclass, field

from pgsched.model import Claim, Status, Verdict, VerdictKind

ARTICLE_PATIENCE = 300.0
"""Seconds after which a claim that nobody owns is given to somebody else."""


class Broken(AssertionError):
    """A promise was broken; the text begins with its name."""


def hold(condition: bool, promise: str, *details: object) -> None:
    """Fail unless the promise is kept."""
    if not condition:
        raise Broken(f"{promise}: {', '.join(map(str, details))}")


@dataclass
class Task:
    """A row, as it must be."""

    id: int
    max_retries: int
    key: str | None
    due_at: float
    status: Status = Status.QUEUED
    fence: int = 0
    holder: int | None = None
    """Only while it is processing; None then means a worker that is no supervisor."""
    retry_count: int = 0
    touched_at: float = 0.0
    attempts: int = 0
    """Executions that were begun and not given back, since the task was enqueued or queued anew by hand."""
    owed: bool = False
    """Whether the last of them has not been accounted for."""
    voided: int = -1
    """The highest fence whose claims somebody has cancelled."""
    settled: dict[int, VerdictKind] = field(default_factory=dict)
    """What was written under each fence."""

    @property
    def live(self) -> bool:
        return self.status in (Status.QUEUED, Status.PROCESSING)


class Oracle:
    """All rows and all leases."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tasks: dict[int, Task] = {}
        self.leases: dict[int, float] = {}
        """Until when, by the database's clock; of every supervisor that was ever registered."""

    def alive(self, supervisor: int) -> bool:
        return self.leases.get(supervisor, self.now) > self.now

    def renewed(self, supervisor: int, granted: bool, lease: float) -> None:
        hold(granted == self.alive(supervisor), "a lease that has run out is final", supervisor, granted)
        if granted:
            self.leases[supervisor] = self.now + lease

    def ended(self, supervisor: int) -> None:
        self.leases[supervisor] = min(self.leases[supervisor], self.now)

    def enqueued(self, task_id: int, max_retries: int, key: str | None) -> None:
        holder = next((task.id for task in self.tasks.values() if key and task.live and task.key == key), None)
        if holder is not None:
            hold(task_id == holder, "a unique key has one live task", task_id, holder)
        else:
            hold(task_id not in self.tasks, "a free unique key makes a task", task_id)
            self.tasks[task_id] = Task(task_id, max_retries, key, self.now, touched_at=self.now)

    def claimed(self, supervisor: int, claim: Claim, began: float) -> None:
        task = self.tasks[claim.task_id]
        hold(task.status is not Status.CANCELLED, "a cancelled task never begins", claim)
        hold(task.status is Status.QUEUED, "a claim takes what is queued", task, claim)
        hold(task.due_at <= began, "nothing is claimed before it is due", task, claim)
        hold(claim.retry_count == task.retry_count, "a claim tells the attempt", task, claim)
        self._changed_hands(task, supervisor, claim, began)

    def reaped(self, supervisor: int, claim: Claim, began: float) -> None:
        task = self.tasks[claim.task_id]
        hold(task.status is Status.PROCESSING, "a reap takes what is in work", task, claim)
        hold(self._orphaned(task, began), "a reap takes what nobody alive holds", task, claim)
        self._changed_hands(task, supervisor, claim, began)

    def orphans(self) -> set[int]:
        """The tasks that a reap must take now."""
        return {task.id for task in self.tasks.values() if self._orphaned(task, self.now)}

    def may_settle(self, supervisor: int, claim: Claim) -> bool:
        task = self.tasks[claim.task_id]
        held = task.status is Status.PROCESSING and (task.holder, task.fence) == (supervisor, claim.fence)
        return held and self.alive(supervisor)

    def settled(self, verdict: Verdict, began: float) -> None:
        task, kind = self.tasks[verdict.claim.task_id], verdict.kind
        hold(verdict.claim.fence not in task.settled, "one settle for each fence", task, verdict)
        task.settled[verdict.claim.fence] = kind
        given_back = kind is VerdictKind.RELEASED and not verdict.seconds
        hold(not (given_back and task.owed), "what was begun is not given back for nothing", task, verdict)
        task.owed = False
        task.touched_at = began
        task.holder = None
        if kind is VerdictKind.RETRY:
            hold(task.retry_count < task.max_retries, "max_retries bounds the retries", task)
            task.retry_count += 1
            task.due_at = began + verdict.delay
        if kind is VerdictKind.RELEASED:
            task.fence += 1
            # What was interrupted is given back at no cost.
            task.attempts -= verdict.seconds > 0
        task.status = {
            VerdictKind.COMPLETED: Status.COMPLETED,
            VerdictKind.FAILED: Status.FAILED,
            VerdictKind.RETRY: Status.QUEUED,
            VerdictKind.RELEASED: Status.QUEUED,
        }[kind]

    def released(self, supervisor: int, task_id: int) -> None:
        """A stray was given back."""
        task = self.tasks[task_id]
        hold(task.holder == supervisor, "strays are one's own", task, supervisor)
        hold(not task.owed, "what was begun is not given back for nothing", task)
        task.status, task.holder = Status.QUEUED, None
        task.fence += 1
        task.touched_at = self.now

    def confirmed(self, supervisor: int, claim: Claim, ours: bool) -> None:
        hold(ours == self.may_settle(supervisor, claim), "a confirmed claim is held", claim, ours)
        task = self.tasks[claim.task_id]
        if ours and task.touched_at < self.now - 60:
            task.touched_at = self.now

    def cancelled(self, task_id: int, done: bool) -> None:
        task = self.tasks[task_id]
        hold(done == task.live, "what is live can be cancelled", task)
        if done:
            task.voided = task.fence
            task.status, task.holder = Status.CANCELLED, None
            task.fence += 1

    def retried(self, task_id: int, done: bool) -> None:
        """Somebody queued the task anew by hand."""
        task = self.tasks[task_id]
        taken = task.key is not None and any(
            other.live and other.key == task.key for other in self.tasks.values() if other is not task
        )
        over = task.status in (Status.FAILED, Status.CANCELLED)
        hold(done == (over and not taken), "what is over can be queued anew", task, done)
        if done:
            task.status, task.due_at, task.touched_at = Status.QUEUED, self.now, self.now
            task.fence += 1
            task.retry_count = task.attempts = 0
            task.owed = False
            task.voided = max(task.voided, task.fence - 1)

    def strange(self, task_id: int) -> None:
        """A worker that is no supervisor takes a task; it tells nobody, and raises no fence."""
        task = self.tasks[task_id]
        task.status, task.holder, task.touched_at = Status.PROCESSING, None, self.now
        task.attempts += 1
        task.owed = True

    def strangers(self) -> list[Task]:
        """What such workers have in hand."""
        return [task for task in self.tasks.values() if task.status is Status.PROCESSING and task.holder is None]

    def began(self, claim: Claim) -> None:
        """A worker begins the task."""
        task = self.tasks[claim.task_id]
        if claim.fence > task.voided:
            task.attempts += 1
            task.owed = True
            hold(task.attempts <= task.max_retries + 1, "max_retries + 1 executions", task, claim)

    def _orphaned(self, task: Task, at: float) -> bool:
        if task.status is not Status.PROCESSING:
            return False
        if task.holder is None:
            return task.touched_at < at - ARTICLE_PATIENCE
        return self.leases[task.holder] <= at

    def _changed_hands(self, task: Task, supervisor: int, claim: Claim, began: float) -> None:
        hold(claim.fence > task.fence, "every change of hands raises the fence", task, claim)
        hold(self.leases[supervisor] > began, "a lost lease takes nothing", supervisor, claim)
        task.status, task.holder, task.fence, task.touched_at = Status.PROCESSING, supervisor, claim.fence, began
