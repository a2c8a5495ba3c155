"""What a task returned or raised reaches the parent as JSON or as text, whatever it was."""

import json

import pytest

from pgsched.model import OutcomeKind
from pgsched.pool import records
from tests.pool.conftest import Harness, pooled

BOTH = pytest.mark.parametrize("method", ["forkserver", "spawn"])
LIMIT = 1024 * 1024


@BOTH
async def test_values_go_there_and_back(method: str) -> None:
    async with pooled(start_method=method) as harness:
        assert await harness.value("noop") is None
        assert await harness.value("add", '{"a": 4}') == "5"
        assert await harness.value("echo", '{"value": {"ä": [1, null, "☃"]}}') == '{"ä":[1,null,"☃"]}'
        assert await harness.value("async_nap", '{"seconds": 0.01}') == "0.01"
        assert await harness.value("echo", '{"value": null}') is None
        assert await harness.value("big_integers") == f"[{2**63},{2**200}]"


async def test_an_outcome_tells_where_and_how_long() -> None:
    async with pooled(processes=2) as harness:
        outcome = await harness.run("nap", '{"seconds": 0.05}')
        assert 0.05 <= outcome.seconds < 30
        assert outcome.slot is not None
        assert outcome.pid == harness.worker(outcome.slot)


async def test_current_task_knows_its_claim() -> None:
    async with pooled() as harness:
        claim = harness.claim("context", queue="mail", retry_count=2, max_retries=5, timeout=30.0)
        harness.dispatch(claim)
        seen = json.loads((await harness.outcome(claim.task_id)).result or "")
        assert 29 < seen.pop("remaining") <= 30
        assert seen == {
            "id": claim.task_id,
            "task_type": "context",
            "queue": "mail",
            "attempt": 3,
            "fence": claim.fence,
            "max_retries": 5,
            "deadline": True,
            "stop_requested": False,
            "reason": None,
        }
        assert json.loads(await harness.value("context") or "")["remaining"] is None


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("pair", "tests.pool.tasks.Pair: a/b"),
        ("picky", "tests.pool.tasks.Picky: someone"),
        ("local", "tests.pool.tasks.fail.<locals>.Local: made here"),
        ("lock", "ValueError: ('held', <unlocked _thread.lock object"),
        ("mute", "tests.pool.tasks.Mute: <its text cannot be had: RuntimeError>"),
        ("nul", "ValueError: a\ufffdb"),
        ("surrogate", "ValueError: a\ufffdb"),
        ("lines", "ValueError: first second"),
        ("long", "ValueError: xxxx"),
        ("cause", "ValueError: outer"),
        ("deep", "RecursionError: maximum recursion depth exceeded"),
    ],
)
async def test_f05_errors_cross_as_text(how: str, line: str) -> None:
    async with pooled() as harness:
        outcome = await harness.run("fail", json.dumps({"how": how}))
        assert outcome.kind is OutcomeKind.RAISED
        assert outcome.failure is not None
        assert outcome.failure.error.startswith(line)
        assert len(outcome.failure.error) <= 1000
        trace = outcome.failure.traceback or ""
        assert "tests/pool/tasks.py" in trace
        assert "pgsched/pool" not in trace
        assert len(trace) < 20_000
        (outcome.failure.error + trace).encode()
        assert "\0" not in trace
        if how == "cause":
            assert "KeyError: 'inner'" in trace
        assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts.total() == 0


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("exit_0", "SystemExit: 0"),
        ("exit_3", "SystemExit: 3"),
        ("exit_text", "SystemExit: text"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator_exit", "GeneratorExit"),
        ("base", "tests.pool.tasks.Strange: odd"),
        ("interrupted", "pgsched.context.Interrupted: by myself"),
    ],
)
async def test_f15_nothing_that_is_raised_ends_the_worker(how: str, line: str) -> None:
    async with pooled() as harness:
        outcome = await harness.run("leave", json.dumps({"how": how}))
        assert outcome.kind is OutcomeKind.RAISED
        assert outcome.failure is not None
        assert outcome.failure.error == line
        assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts.total() == 0


@pytest.mark.parametrize("code", [0, 7])
async def test_f15_an_exit_is_a_failure_whatever_its_code(code: int) -> None:
    async with pooled() as harness:
        outcome = await harness.run("leave", json.dumps({"how": f"_exit_{code}"}))
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.failure is not None
        assert outcome.failure.error == f"exited with code {code} during the task"
        assert (outcome.failure.exit_code, outcome.failure.signal) == (code, None)
        assert await harness.value("add", '{"a": 1}') == "2"


@BOTH
async def test_f07_results_of_every_size_are_stored_or_refused(method: str) -> None:
    async with pooled(start_method=method, max_tasks_per_worker=3) as harness:
        for size in (1024, 65_514, 65_515, 65_536, 65_537, LIMIT - 2):
            result = await harness.value("text", json.dumps({"size": size}))
            assert result == f'"{"x" * size}"'
        for size in (LIMIT - 1, 20 * LIMIT):
            outcome = await harness.run("text", json.dumps({"size": size}))
            assert outcome.kind is OutcomeKind.RAISED
            assert outcome.failure is not None
            assert "must be at most 1,048,576" in outcome.failure.error


async def test_f07_payloads_of_every_size_arrive() -> None:
    async with pooled() as harness:
        for size in (1024, 65_400, 65_536, 2 * LIMIT, 16 * LIMIT):
            assert await harness.value("length", json.dumps({"value": "x" * size})) == str(size)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nan", "result.m is nan"),
        ("inf", "result.m is inf"),
        ("nan_in_list", "result[1][1] is nan"),
        ("decimal", "Decimal"),
        ("nul", "result.a[0] contains a NUL"),
        ("nul_key", "NUL"),
        ("surrogate", "result.name contains the lone surrogate U+DCE9"),
        ("set", "result.s is a set"),
        ("object", "result is an object"),
        ("cycle", "contains itself"),
    ],
)
async def test_f43_f45_f46_a_result_that_cannot_be_stored_says_where(what: str, words: str) -> None:
    async with pooled() as harness:
        outcome = await harness.run("unstorable", json.dumps({"what": what}))
        assert outcome.kind is OutcomeKind.RAISED
        assert outcome.failure is not None
        assert outcome.failure.error.startswith("result not storable: ")
        assert words in outcome.failure.error
        assert await harness.value("add", '{"a": 1}') == "2"


@pytest.mark.parametrize(
    ("task_type", "payload", "words"),
    [
        ("add", "{}", "missing a required argument: 'a'"),
        ("add", '{"a": 1, "c": 2}', "unexpected keyword argument 'c'"),
        ("add", "[1]", "must be"),
        ("add", "{", "JSON"),
        ("no_such_type", "{}", "task type 'no_such_type' is not known to this worker"),
    ],
)
async def test_arguments_that_do_not_fit_fail_the_task_in_one_line(task_type: str, payload: str, words: str) -> None:
    async with pooled() as harness:
        outcome = await harness.run(task_type, payload)
        assert outcome.kind is OutcomeKind.RAISED
        assert outcome.failure is not None
        assert words in outcome.failure.error
        assert "\n" not in outcome.failure.error
        assert outcome.failure.traceback is None


async def test_a_failure_counts_the_attempt_s_own_processor_time_and_output() -> None:
    async with pooled() as harness:
        await harness.value("say", '{"words": "from the one before"}')
        await harness.value("burn", '{"seconds": 0.3}')
        outcome = await harness.run("say_and_fail", '{"words": "my last words"}')
        assert outcome.failure is not None
        assert outcome.failure.stderr == "my last words\n"
        assert outcome.failure.cpu_seconds is not None
        assert 0 <= outcome.failure.cpu_seconds < 0.2
        assert (outcome.failure.peak_memory or 0) > 4 * LIMIT


async def test_a_crash_counts_the_attempt_s_own_processor_time() -> None:
    async with pooled() as harness:
        await harness.value("burn", '{"seconds": 0.3}')
        outcome = await harness.run("die", '{"number": 9}')
        assert outcome.failure is not None
        assert outcome.failure.cpu_seconds is not None
        assert 0 <= outcome.failure.cpu_seconds < 0.2


async def test_a_worker_in_which_a_task_forked_and_both_halves_returned_answers_once() -> None:
    async with pooled() as harness:
        for _ in range(5):
            assert await harness.value("fork_and_return") == '"parent"'
        assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts.total() == 0


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x06rubbish",
        b"",
        b"\x05{}",
        b"\xff",
        b"\x08rubbish",
        records.encode_head(0.0) + records.encode_report(2, records.RETURNED, 0, 0.0, "1"),
        records.encode_head(0.0) + records.encode_report(1, records.RAISED, 0, 0.0, "no failure"),
        records.encode_head(0.0) + records.encode_report(1, 99, 0, 0.0, ""),
        records.encode_head(0.0) + records.encode_report(1, records.RETURNED, 0, 0.0, "1")[:-1],
    ],
)
async def test_a_task_that_scribbles_on_the_worker_s_socket_costs_its_attempt(rubbish: bytes) -> None:
    async with pooled() as harness:
        outcome = await harness.run("scribble", json.dumps({"rubbish": rubbish.hex()}))
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.failure is not None
        assert "socket was written to by something else" in outcome.failure.error
        assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts == {"protocol": 1}


@pytest.mark.usefixtures("no_ticks")
async def test_a_task_that_closes_the_worker_s_socket_costs_its_worker() -> None:
    """What it returned is in the memory that the parent reads after the worker's death."""
    async with pooled() as harness:
        assert (await harness.run("close_everything")).kind is OutcomeKind.RETURNED
        assert await harness.value("add", '{"a": 1}') == "2"
        assert harness.pool.restarts == {"idle": 1}


async def test_a_payload_that_was_too_large_to_be_sent_fails_the_task() -> None:
    async with pooled() as harness:
        outcome = await harness.run("noop", "")
        assert (outcome.kind, outcome.failure and outcome.failure.error) == (
            OutcomeKind.RAISED,
            "payload is too large: over 64 MiB as text",
        )


async def test_start_tells_the_task_types() -> None:
    harness = Harness()
    task_types = await harness.pool.start()
    await harness.pool.stop()
    assert task_types["grow"].memory == 128 * LIMIT
    assert task_types["short_limit"].timeout == 0.3
    assert task_types["noop"].retry.max == 3
