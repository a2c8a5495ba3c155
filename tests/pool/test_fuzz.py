"""Any bytes as a frame: the worker that they come from is taken for broken, and the parent goes on."""

import asyncio
import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pgsched.model import OutcomeKind
from pgsched.pool import records, wire
from pgsched.pool.workers import PROTOCOL
from tests.fuzz import targets
from tests.pool.conftest import Harness

some = settings(max_examples=200, deadline=None)

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_failures = st.fixed_dictionaries(
    {"error": _values | st.text()},
    optional={"traceback": _values, "peak_memory": _values, "out_of_memory": _values, "other": _values},
).map(json.dumps)
_kinds = st.integers(0, 255).map(lambda kind: bytes((kind,)))
_bodies = st.text() | _failures | _values.map(json.dumps) | st.just("[" * 100_000)


def _record(sequence: int, code: int, flags: int, seconds: float, body: str) -> bytes:
    return records.encode_report(sequence, code, flags, seconds, body)


def _reports(sequences: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    """Whole frames with right checks, whatever is in them."""
    made = st.builds(_record, sequences, st.integers(0, 3), st.integers(0, 255), st.floats(), _bodies)
    heads = st.floats().map(records.encode_head)
    return st.builds(lambda head, each: head + b"".join(each), heads, st.lists(made, min_size=1, max_size=3))


_anything = st.binary(min_size=1) | st.builds(bytes.__add__, _kinds, st.binary() | _bodies.map(str.encode))


@some
@given(_anything | _reports(st.integers(0, 2**32 - 1)) | _failures.map(str.encode))
def test_bytes_are_frames_or_refused(data: bytes) -> None:
    targets.frames(data)
    targets.report(data)


@some
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.sampled_from([records.RETURNED, records.RAISED]),
            st.integers(0, 255),
            st.floats(0, 1e9),
            st.text(),
        )
    ),
    st.floats(0, 1e9),
)
def test_reports_arrive_as_they_were(reports: list[Any], cpu_seconds: float) -> None:
    frame = records.encode_head(cpu_seconds) + b"".join(_record(*each) for each in reports)
    assert records.decode_reports(frame) == (cpu_seconds, reports)
    assert records.salvage(frame + records.NO_RECORD)[1] == reports


def _no_frame(datagram: bytes) -> bool:
    """Whether a worker at its first task can never have sent this, as a part or as a whole."""
    return datagram[0] != wire.PART and len(datagram) <= wire.LIMIT


_wrong = st.one_of(
    _anything,
    # Numbers that no run bears.
    _reports(st.integers(2, 2**32 - 1)),
    # The right number, and a content that cannot be.
    st.builds(
        lambda code, seconds: records.encode_head(1.0) + _record(1, code, 0, seconds, "1"),
        st.integers(2, 255),
        st.floats(0, 1),
    ),
    st.sampled_from([-1.0, math.nan, math.inf]).map(
        lambda seconds: records.encode_head(1.0) + _record(1, records.RETURNED, 0, seconds, "1")
    ),
    st.sampled_from(["", "3", '{"error": 3}', '{"error": "x", "peak_memory": "y"}', "[" * 20_000]).map(
        lambda body: records.encode_head(1.0) + _record(1, records.RAISED, 0, 0.5, body)
    ),
    _values.map(lambda content: wire.encode_message(wire.READY, content)),
).filter(_no_frame)


async def _send(harness: Harness, datagrams: list[bytes]) -> None:
    await harness.free()
    task_id = harness.start("nap", '{"seconds": 60}')
    process = harness.pool._workers.slots[0].process
    assert process is not None
    for datagram in datagrams:
        # Our duplicate of the worker's end: as if it had sent this.
        process.spare.send(datagram)
    outcome = await harness.outcome(task_id)
    # Interrupted, at no cost, where the worker had not even begun.
    assert outcome.kind in (OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED)
    if outcome.kind is OutcomeKind.CRASHED:
        assert outcome.failure is not None
        assert "was written to by something else" in outcome.failure.error


def test_a_worker_that_sends_what_is_no_frame_is_replaced() -> None:
    harness = Harness()
    lost: list[dict[str, Any]] = []
    hits = 0

    @settings(max_examples=40, deadline=None)
    @given(_wrong)
    def hit(datagram: bytes) -> None:
        nonlocal hits
        runner.run(_send(harness, [datagram]))
        hits += 1
        assert (lost, harness.pool.restarts[PROTOCOL]) == ([], hits)

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        runner.run(harness.pool.start())
        try:
            # An end of parts without any, and parts that make up nothing.
            for datagrams in ([bytes((wire.LAST,))], [bytes((wire.PART,)), bytes((wire.LAST,))]):
                runner.run(_send(harness, datagrams))
                hits += 1
            hit()
        finally:
            runner.run(harness.pool.stop())
    assert harness.pool.restarts[PROTOCOL] == hits
