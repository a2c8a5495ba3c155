"""``python -m tests.chaos``: run one storm, print what was done and found, and exit 1 on a violation."""

import argparse
import json
import random
import signal
import sys
from pathlib import Path

from tests.chaos.ledger import Book
from tests.chaos.plan import draw
from tests.chaos.storm import Report, run

LEASE = 5.0
SHOWN = 10
"""Tasks whose history is printed."""


def main() -> int:
    """Run a storm; 0 when nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults and tasks come [30]")
    parser.add_argument("--seed", type=int, help="repeats the plan of an earlier storm")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary there too")
    parser.add_argument("--binaries", type=Path, metavar="DIR", help="of another PostgreSQL than the embedded one")
    parser.add_argument("--package", type=Path, metavar="DIR", help="use the pgsched in this directory")
    options = parser.parse_args()
    # Told to end, it still stops its server and its supervisors.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    plan = draw(seed, options.minutes * 60, LEASE)
    print(f"seed {seed}, {options.minutes:g} minutes, {plan.terms}", flush=True)
    report = run(plan, binaries=options.binaries, package=options.package)
    print(described(report))
    if options.json is not None:
        options.json.write_text(json.dumps(summary(report), indent=2))
    return 1 if report.violations else 0


def summary(report: Report) -> dict[str, object]:
    """The report as JSON."""
    return {
        "seed": report.plan.seed,
        "seconds": report.plan.seconds,
        "terms": str(report.plan.terms),
        **report.figures,
        "remarks": report.remarks,
        "violations": [violation._asdict() for violation in report.violations],
    }


def described(report: Report) -> str:
    """The report for a reader: figures, violations, and the whole history of the tasks that were met by one."""
    lines = [f"{name}: {value}" for name, value in report.figures.items()]
    lines += [f"remark: {remark}" for remark in report.remarks]
    lines += [f"VIOLATION {what}: task {task_id}: {text}" for what, task_id, text in report.violations]
    met = dict.fromkeys(violation.task_id for violation in report.violations if violation.task_id is not None)
    for task_id in list(met)[:SHOWN]:
        lines += ["", f"task {task_id}:", *history(report.book, task_id)]
    lines.append(f"{len(report.violations)} violations" if report.violations else "no violation")
    return "\n".join(lines)


def history(book: Book, task_id: int) -> list[str]:
    """Everything that was written down of one task, and of what was done to its supervisors meanwhile."""
    entries = [entry for entry in book.entries if entry.task_id == task_id]
    pids = {tenure.supervisor: tenure.pid for tenure in book.tenures}
    owners = {owner for entry in entries for owner in (entry.owner_before, entry.owner_after) if owner is not None}
    seats = {book.seats.get(pids.get(owner, 0), -1) for owner in owners} | {-1}
    span = (min((e.at for e in entries), default=0) - 15, max((e.at for e in entries), default=0) + 5)
    lines = [(entry.at, f"{entry}") for entry in entries]
    lines += [(run.began, f"{run}") for run in book.executions if run.task_id == task_id]
    lines += [(done.at, f"{done}") for done in book.done if done.seat in seats and span[0] <= done.at <= span[1]]
    lines += [(at, f"supervisor {owner} lost its lease") for owner, at in book.leases_lost.items() if owner in owners]
    lines += [(at, f"supervisor process {pid} died") for pid, at in book.deaths.items() if pid in map(pids.get, owners)]
    rows = [f"  {row}" for row in book.rows if row.task_id == task_id]
    rows += [f"  {failure}" for failure in book.failures if failure.task_id == task_id]
    return [*(f"  {at:10.3f} {text}" for at, text in sorted(lines)), *rows]


if __name__ == "__main__":
    sys.exit(main())
