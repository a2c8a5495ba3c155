"""How far a demo has come: counts what ended and keeps one line of a terminal up to date.

Runs in the supervisor's loop, where ``on_outcome`` is called for every attempt. It writes to standard error only; where
that is no terminal, it writes a line every few seconds instead of moving one.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import TextIO

from pgsched.cli.output import duration
from pgsched.model import Claim, Outcome, OutcomeKind, Retry, VerdictKind
from pgsched.rules.lease import LEASE_LOST
from pgsched.rules.verdict import decide, lost

REDRAW = 0.1
"""Seconds between two drawings on a terminal."""
REPORT = 5.0
"""Seconds between two lines elsewhere."""
WINDOW = 10.0
"""Seconds over which the rate is measured: long enough to be calm, short enough to be true."""


class Progress:
    """Counts the ends of `total` tasks and sets `finished` at the last.

    :param processes: how many tasks run at once.
    """

    def __init__(
        self, total: int, processes: int, stream: TextIO, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # By id: one that went with the lease may have ended all the same, and ends again.
        self._completed: set[int] = set()
        self._failed: set[int] = set()
        self.finished = asyncio.Event()
        self._total = total
        self._processes = processes
        self._stream = stream
        self._terminal = stream.isatty()
        self._clock = clock
        self._begun = clock()
        self._samples = [(self._begun, 0)]

    @property
    def completed(self) -> int:
        """Tasks that have returned."""
        return len(self._completed)

    @property
    def failed(self) -> int:
        """Tasks that have not, and will not."""
        return len(self._failed)

    @property
    def ended(self) -> int:
        """Tasks that will not run again."""
        return self.completed + self.failed

    def on_outcome(self, claim: Claim, outcome: Outcome) -> None:
        """An attempt has ended; the rules say whether that was the task's last."""
        if outcome.kind is OutcomeKind.RETURNED:
            self._completed.add(claim.task_id)
            self._failed.discard(claim.task_id)
        else:
            if outcome.failure is not None and outcome.failure.error == LEASE_LOST:
                # The reaper will say so, of a claim that is nobody's by then.
                outcome = lost()
            verdict = decide(claim, outcome, Retry(), lambda: 0.0)
            if (verdict is None or verdict.kind is VerdictKind.FAILED) and claim.task_id not in self._completed:
                self._failed.add(claim.task_id)
        if self.ended >= self._total:
            self.finished.set()

    async def show(self) -> None:
        """Draw until cancelled."""
        try:
            while True:
                await asyncio.sleep(REDRAW if self._terminal else REPORT)
                self.draw()
        finally:
            if self._terminal:
                self.draw()
                self._stream.write("\n")
                self._stream.flush()

    def draw(self) -> None:
        """Write the line once."""
        if not self._terminal:
            self._stream.write(f"{self.line()}\n")
        else:
            columns = shutil.get_terminal_size().columns
            # \x1b[K: what is left of a longer line before.
            self._stream.write(f"\r{self.line(bar=20)[: columns - 1]}\x1b[K")
        self._stream.flush()

    def line(self, *, bar: int = 0) -> str:
        """The state as text, with a bar of that many characters in front."""
        rate = self._rate()
        left = self._total - self.ended
        share = self.ended / self._total
        parts = [
            f"{self.ended:,}/{self._total:,} files ({share:.0%})",
            f"{rate:,.0f}/s",
            f"{min(left, self._processes)} running",
            f"{self.failed:,} failed",
            f"{duration(left / rate)} left" if rate and left else "done" if not left else "? left",
        ]
        drawn = f"[{'#' * int(bar * share):<{bar}}] " if bar else ""
        return drawn + ", ".join(parts)

    def _rate(self) -> float:
        """Files per second over the last seconds."""
        now = self._clock()
        self._samples = [sample for sample in self._samples if now - sample[0] <= WINDOW] or self._samples[-1:]
        since, count = self._samples[0]
        self._samples.append((now, self.ended))
        return (self.ended - count) / (now - since) if now > since else 0.0
