"""What became of an attempt: read from its worker's report, or from its worker's death.

An attempt that was ordered to stop has the outcome of its order, unless it returned all the same. Keeps no state. Runs
in the parent.
"""

import dataclasses

from pgsched.model import Failure, Outcome, OutcomeKind
from pgsched.pool import deaths, records
from pgsched.pool.deaths import Death
from pgsched.pool.process import Process
from pgsched.pool.sent import Order


def reported(
    report: records.Report, order: Order | None, process: Process, slot: int, cpu_seconds: float, output_from: int
) -> Outcome:
    """The worker has said how it ended.

    :param order: that the worker was given; it may have been for the task before.
    :param cpu_seconds: that this attempt has used, as far as that is known.
    :param output_from: position in the worker's output at which the attempt began.
    :raises ProtocolError: what it says of its failure is none.
    """
    if report.code == records.RETURNED:
        return Outcome(OutcomeKind.RETURNED, report.seconds, report.body or None, None, slot, process.pid)
    failure = dataclasses.replace(
        records.decode_failure(report.body),
        cpu_seconds=max(cpu_seconds, 0.0),
        stderr=process.stream.tail(output_from),
    )
    kind = OutcomeKind.RAISED
    if order is not None and order.sequence == report.sequence:
        kind = order.kind
        failure = dataclasses.replace(
            failure,
            error=order.text,
            stack=process.page.stack(),
            out_of_memory=True if kind is OutcomeKind.OVER_MEMORY else failure.out_of_memory,
        )
    return Outcome(kind, report.seconds, None, failure, slot, process.pid)


def died(
    death: Death,
    order: Order | None,
    process: Process,
    slot: int,
    *,
    seconds: float,
    cpu_before: float,
    out_of_memory: bool | None,
    output_from: int,
) -> Outcome:
    """The worker has ended under it.

    :param seconds: since the attempt began.
    :param cpu_before: CPU seconds that earlier attempts in the same worker had used.
    :param out_of_memory: what is known of a SIGKILL that was not ours.
    """
    failure: Failure = deaths.failure(
        death,
        None if order is None else order.text,
        cpu_before=cpu_before,
        out_of_memory=out_of_memory if order is None else order.kind is OutcomeKind.OVER_MEMORY,
        stderr=process.stream.tail(output_from),
        stack=None if order is None else process.page.stack(),
    )
    kind = OutcomeKind.CRASHED if order is None else order.kind
    return Outcome(kind, max(seconds, 0.0), None, failure, slot, process.pid)
