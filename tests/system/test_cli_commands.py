"""What the commands do to the table and show of it, for people and as JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsched.rules.payload import PAYLOAD_LIMIT
from tests.command import Ended
from tests.inprocess import InProcess
from tests.proxy import Proxy
from tests.support import ROOT, Server, eventually
from tests.system.conftest import CommandLine

Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def run(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Runs a command on the test's database."""
    return InProcess({"PGSCHED_DSN": dsn}, capsys, monkeypatch)


@pytest.fixture
def sql(server: Server, dsn: str) -> Sql:
    """Runs a statement on the test's database."""
    return lambda query, *parameters: server.sql(query, *parameters, dsn=dsn)


def parsed(ended: Ended) -> Any:
    """The JSON that a command printed without a word on standard error."""
    assert ended.err == ""
    return json.loads(ended.out)


def insert(sql: Sql, status: str = "queued", queue: str = "default", task_type: str = "compress") -> int:
    """A task of some status; its id."""
    finished = None if status in ("queued", "processing") else "2026-01-01T00:00:00Z"
    rows = sql(
        "INSERT INTO scheduled_tasks (task_type, payload, run_at, status, queue, finished_at, error_log)"
        ' VALUES (%s, \'{"path": "a"}\', now(), %s, %s, %s, %s) RETURNING id',
        task_type,
        status,
        queue,
        finished,
        "ValueError: bad\nmore" if status == "failed" else None,
    )
    return int(rows[0][0])


class TestEnqueue:
    def test_no_more_is_read_than_a_payload_may_have(self, pgsched_cli: CommandLine) -> None:
        """Whoever writes may go on for ever."""
        reading, writing = os.pipe()
        command = pgsched_cli("enqueue", "compress", "-", stdin=reading)
        os.close(reading)
        with open(writing, "wb") as pipe:
            pipe.write(b"[" * (PAYLOAD_LIMIT + 1))
            pipe.flush()
            ended = command.wait()
        assert (ended.code, ended.err) == (2, f"pgsched: payload must be at most {PAYLOAD_LIMIT:,} bytes\n")

    def test_prints_the_id_of_a_committed_task(self, run: InProcess, sql: Sql) -> None:
        ended = run("enqueue", "compress", '{"path": "ä.txt", "preset": 6}', "--queue", "mail", "--priority", "-5")
        assert (ended.code, ended.err) == (0, "")
        rows = sql("SELECT id, task_type, payload, queue, priority, status, max_retries FROM scheduled_tasks")
        assert rows == [(int(ended.out), "compress", {"path": "ä.txt", "preset": 6}, "mail", -5, "queued", 3)]

    def test_without_a_payload_it_is_an_empty_object(self, run: InProcess, sql: Sql) -> None:
        task_id = parsed(run("enqueue", "compress", "--json"))["id"]
        assert sql("SELECT id, payload FROM scheduled_tasks") == [(task_id, {})]

    def test_a_delay_counts_from_the_databases_now(self, run: InProcess, sql: Sql) -> None:
        run("enqueue", "compress", "--delay", "10m")
        ((delay,),) = sql("SELECT extract(epoch FROM run_at - created_at)::float8 FROM scheduled_tasks")
        assert delay == pytest.approx(600, abs=1)

    @pytest.mark.parametrize("text", ["2030-01-31T06:00:00+01:00", "2030-01-31T05:00:00Z", "20300131T050000Z"])
    def test_a_due_time(self, run: InProcess, sql: Sql, text: str) -> None:
        assert run("enqueue", "compress", "--run-at", text).code == 0
        assert sql("SELECT run_at = '2030-01-31 05:00Z' FROM scheduled_tasks") == [(True,)]

    def test_retries_timeout_and_key(self, run: InProcess, sql: Sql) -> None:
        arguments = ["enqueue", "compress", "--max-retries", "0", "--timeout", "1.5m", "--unique-key", "one"]
        first, second = run(*arguments), run(*arguments)
        assert first.out == second.out
        rows = sql("SELECT id, max_retries, timeout, unique_key FROM scheduled_tasks")
        assert rows == [(int(first.out), 0, 90.0, "one")]

    @pytest.mark.parametrize(
        ("data", "code"), [(b'{"path": "a"}', 0), (b'{"path": "\xff"}', 2), (b"", 2), (b"[" + b"0," * 9_000_000, 2)]
    )
    def test_a_payload_from_standard_input(self, dsn: str, server: Server, data: bytes, code: int) -> None:
        command = [sys.executable, "-m", "pgsched", "enqueue", "compress", "-", "--dsn", dsn]
        done = subprocess.run(command, input=data, capture_output=True, cwd=ROOT, timeout=30, check=False)
        assert done.returncode == code
        assert done.stderr.count(b"\n") == (1 if code else 0)
        assert server.value("SELECT count(*) FROM scheduled_tasks", dsn=dsn) == (0 if code else 1)


class TestStatus:
    def test_counts_by_queue_type_and_status(self, run: InProcess, sql: Sql) -> None:
        for status in ("queued", "queued", "processing", "failed"):
            insert(sql, status)
        insert(sql, "completed", queue="mail", task_type="send")
        ended = run("status")
        assert ended.code == 0
        lines = ended.out.splitlines()
        assert lines[0].split() == (
            ["QUEUE", "TYPE", "QUEUED", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED", "OLDEST", "DUE"]
        )
        assert lines[1].split()[:7] == ["default", "compress", "2", "1", "0", "1", "0"]
        assert lines[2].split() == ["mail", "send", "0", "0", "1", "0", "0", "-"]
        assert "no supervisor is registered" in lines
        assert "no live supervisor takes tasks of type compress in queue default" in lines
        assert "1 processing task of no registered supervisor" in lines

    def test_as_json(self, run: InProcess, sql: Sql) -> None:
        insert(sql)
        found = parsed(run("status", "--json"))
        assert found["supervisors"] == []
        (count,) = found["counts"]
        assert (count["queue"], count["task_type"], count["status"], count["tasks"]) == (
            "default",
            "compress",
            "queued",
            1,
        )
        assert found["oldest_due"]["default"] >= 0

    def test_how_many_processes_are_needed(self, run: InProcess, sql: Sql) -> None:
        """Of tasks of a minute ten became due in five; two of six processes do them. Of another type nobody knows."""
        for number, until in enumerate(("now() + interval '1 hour'", "now() - interval '1 hour'"), start=1):
            sql(
                "INSERT INTO pgsched_supervisors (host, boot_id, pid_namespace, pid, started_ticks, processes,"
                f" registered_at, lease_until) VALUES ('h', 'b', 1, 1, 1, %s, now() - interval '1 day', {until})",
                number * 6,
            )
        ended = "now() - interval '100 s', 'completed', now() - interval '80 s', now() - interval '20 s'"
        sql(
            "INSERT INTO scheduled_tasks (task_type, run_at, status, started_at, finished_at, claimed_by)"
            f" SELECT 'compress', {ended}, (SELECT min(id) FROM pgsched_supervisors) FROM generate_series(1, 10)"
        )
        insert(sql, task_type="other")
        sql("UPDATE scheduled_tasks SET run_at = now() WHERE status = 'queued'")
        lines = run("status").out.splitlines()
        assert [line.split()[3:5] for line in lines if line.endswith("left)") or "over for" in line] == [
            ["6", "33%"],
            ["12", "0%"],
        ]
        assert lines[-4:] == [
            "TYPE      BECAME DUE  ATTEMPTS  TAKES  NEEDED",
            "compress          10        10  1m00s     2.0",
            "other              1         0      -       -",
            "at least 2.0 processes needed; there are 6",
        ]
        found = parsed(run("status", "--json"))
        assert found["capacity"]["window"] == 300
        assert [demand["task_type"] for demand in found["capacity"]["task_types"]] == ["compress", "other"]
        assert found["capacity"]["needed"] == pytest.approx(2.0)
        assert [round(each["busy"], 2) for each in found["supervisors"]] == [0.33, 0.0]


class TestTasks:
    def test_newest_first_with_the_first_line_of_the_error(self, run: InProcess, sql: Sql) -> None:
        first, second = insert(sql), insert(sql, "failed")
        lines = run("tasks").out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == [str(second), str(first)]
        assert lines[1].endswith("ValueError: bad")
        assert "0/3" in lines[1]

    def test_filters_and_limit(self, run: InProcess, sql: Sql) -> None:
        ids = [insert(sql, status, queue) for status in ("queued", "failed") for queue in ("a", "b", "c")]
        assert [task["id"] for task in parsed(run("tasks", "--json", "--queue", "a,b", "--status", "failed"))] == [
            ids[4],
            ids[3],
        ]
        assert len(parsed(run("tasks", "--json", "--limit", "2"))) == 2
        assert parsed(run("tasks", "--json", "--type", "other")) == []
        assert len(parsed(run("tasks", "--json", environment={"PGSCHED_QUEUE": "c"}))) == 2


class TestShow:
    def test_a_task_and_its_failures(self, run: InProcess, sql: Sql) -> None:
        task_id = insert(sql, "failed")
        sql(
            "INSERT INTO pgsched_failures"
            " (task_id, attempt, fence, task_type, outcome, error, traceback, signal, seconds)"
            " VALUES (%s, 1, 1, 'compress', 'crashed', 'killed', E'line 1\\n  line 2', 9, 1.5)",
            task_id,
        )
        ended = run("show", str(task_id))
        assert ended.code == 0
        lines = [line.split(maxsplit=1) for line in ended.out.splitlines() if line]
        assert ["id", str(task_id)] in lines
        assert ["payload", '{"path": "a"}'] in lines
        assert ["outcome", "crashed"] in lines
        assert ["signal", "9"] in lines
        assert ["line", "2"] in lines

        found = parsed(run("show", str(task_id), "--json"))
        assert found["task"]["payload"] == {"path": "a"}
        assert found["failures"][0]["traceback"] == "line 1\n  line 2"
        assert datetime.fromisoformat(found["task"]["run_at"]).tzinfo is not None

    def test_an_unknown_id_is_a_no(self, run: InProcess) -> None:
        ended = run("show", "5")
        assert (ended.code, ended.out, ended.err) == (1, "", "pgsched: there is no task 5\n")


class TestRetry:
    def test_by_id(self, run: InProcess, sql: Sql) -> None:
        failed, queued = insert(sql, "failed"), insert(sql)
        ended = run("retry", str(failed), str(queued), "7")
        assert ended.code == 1
        assert "1 task queued again" in ended.out
        assert f"task {queued} left as it is: is queued" in ended.out
        assert "task 7 left as it is: not found" in ended.out
        assert sql("SELECT status FROM scheduled_tasks") == [("queued",), ("queued",)]

    def test_by_filter(self, run: InProcess, sql: Sql) -> None:
        here, there = insert(sql, "failed", "a"), insert(sql, "failed", "b")
        assert parsed(run("retry", "--queue", "a", "--json")) == {"count": 1, "ids": [here], "left": {}}
        assert sql("SELECT id FROM scheduled_tasks WHERE status = 'failed'") == [(there,)]

    def test_all(self, run: InProcess, sql: Sql) -> None:
        for status in ("failed", "cancelled", "completed"):
            insert(sql, status)
        assert run("retry", "--all").out == "2 tasks queued again\n"


class TestCancel:
    def test_by_filter_and_by_id_together(self, run: InProcess, sql: Sql) -> None:
        ids = [insert(sql, status) for status in ("queued", "processing")]
        ended = run("cancel", *map(str, ids), "--status", "queued", "--json")
        assert ended.code == 1
        assert json.loads(ended.out)["ids"] == ids[:1]

    @pytest.mark.parametrize("command", ["cancel", "retry"])
    def test_something_must_be_typed(self, run: InProcess, sql: Sql, command: str) -> None:
        insert(sql)
        insert(sql, "failed")
        ended = run(command, environment={"PGSCHED_QUEUE": "default", "PGSCHED_ALL": "1"})
        assert ended.code == 2
        assert "say which tasks" in ended.err
        assert run(command, "--all", "--queue", "default").code == 2
        assert sql("SELECT count(*) FROM scheduled_tasks WHERE fence > 0") == [(0,)]

    def test_a_filter_in_the_environment_narrows(self, run: InProcess, sql: Sql) -> None:
        insert(sql, queue="a"), insert(sql, queue="b")
        assert run("cancel", "--type", "compress", environment={"PGSCHED_QUEUE": "a"}).out == "1 task cancelled\n"

    def test_a_running_task_is_stopped(self, pgsched_cli: CommandLine, run: InProcess, sql: Sql) -> None:
        pgsched_cli.module(
            "tasks", "import time\nfrom pgsched import App\napp = App()\n@app.task\ndef long(): time.sleep(60)\n"
        )
        task_id = insert(sql, task_type="long")
        sql("UPDATE scheduled_tasks SET payload = '{}'")
        supervisor = pgsched_cli("run", "tasks:app", "--processes", "1")
        eventually(lambda: sql("SELECT id FROM scheduled_tasks WHERE status = 'processing'"), every=0.1)
        assert " on " in run("tasks").out
        assert "lease until" in run("show", str(task_id)).out
        lines = run("status").out.splitlines()
        assert [word for word in lines[4].split()[3:8] if not word.endswith("%")] == ["1", "all", "all", "1"]
        assert "left)" in lines[4]
        assert run("cancel", str(task_id)).code == 0
        supervisor.wait_for(f"cancelled task_id={task_id}")
        supervisor.signal(signal.SIGTERM)
        assert supervisor.wait().code == 0
        assert sql("SELECT status FROM scheduled_tasks") == [("cancelled",)]


class TestPrune:
    def test_only_what_ended_long_ago(self, run: InProcess, sql: Sql) -> None:
        insert(sql, "completed"), insert(sql, "failed"), insert(sql)
        sql("UPDATE scheduled_tasks SET finished_at = now() WHERE status = 'failed'")
        assert run("prune", "--older-than", "1h").out == "1 task deleted\n"
        assert parsed(run("prune", "--older-than", "0", "--json")) == {"count": 1, "dropped_about": 0}
        assert sql("SELECT status FROM scheduled_tasks") == [("queued",)]

    def test_a_range_that_cannot_be_dropped_is_a_warning(self, run: InProcess, sql: Sql) -> None:
        sql("CREATE TABLE mine PARTITION OF scheduled_tasks_ended FOR VALUES FROM ('2001-01-01Z') TO ('2001-01-02Z')")
        sql("CREATE VIEW looked_at AS SELECT id FROM mine")
        insert(sql, "completed")
        sql("UPDATE scheduled_tasks SET finished_at = '2001-01-01 12:00Z'")
        ended = run("prune", "--older-than", "1h")
        assert (ended.code, ended.out) == (0, "1 task deleted\n")
        assert ended.err.startswith("pgsched: warning: cannot drop ranges: cannot drop table mine because ")
        assert ended.err.count("\n") == 1

    def test_the_age_is_required(self, run: InProcess) -> None:
        ended = run("prune")
        assert (ended.code, ended.err.count("\n")) == (2, 1)


class TestSetup:
    def test_migrate_twice(self, run: InProcess, empty_dsn: str) -> None:
        first, second = run("migrate", "--dsn", empty_dsn), run("migrate", "--dsn", empty_dsn)
        assert (first.code, second.code) == (0, 0)
        assert "applied 0001" in first.out
        assert "up to date" in second.out

    def test_check_of_a_good_database(self, pgsched_cli: CommandLine) -> None:
        pgsched_cli.module("tasks", "from pgsched import App\napp = App()\n@app.task\ndef work(): pass\n")
        ended = pgsched_cli.run("check", "tasks:app")
        assert ended.code == 0, ended.out
        assert "tasks:app has 1 task type: work" in ended.out
        found = json.loads(pgsched_cli.run("check", "tasks:app", "--json").out)
        assert found["task_types"] == ["work"]
        assert all(problem["level"] != "error" for problem in found["problems"])

    def test_an_app_without_tasks_is_a_warning(self, pgsched_cli: CommandLine) -> None:
        pgsched_cli.module("nothing", "from pgsched import App\napp = App()\n")
        ended = pgsched_cli.run("check", "nothing:app")
        assert ended.code == 0
        assert "warning: nothing:app has no tasks; import the modules that declare them\n" in ended.out
        pgsched_cli("run", "nothing:app", "--processes", "1").wait_for(r'WARNING pool_started task_types="\[\]"')

    def test_the_traceback_of_an_app_is_shown_on_request(self, pgsched_cli: CommandLine) -> None:
        pgsched_cli.module("broken", "from pgsched import App\nApp().no_such_thing()\n")
        command = ("run", "broken:app", "--processes", "1", "--metrics-address", "none")
        ended = pgsched_cli.run(*command)
        assert (ended.code, ended.err.count("Traceback")) == (5, 0)
        assert "/broken.py:2)" in ended.err.splitlines()[-1]
        shown = pgsched_cli.run(*command, environment={"PGSCHED_DEBUG": "1"}).err
        assert '/broken.py", line 2, in <module>' in shown
        assert "pgsched/cli" not in shown

    def test_check_of_an_empty_database(self, run: InProcess, empty_dsn: str) -> None:
        ended = run("check", "--dsn", empty_dsn)
        assert ended.code == 1
        assert "run `pgsched migrate`" in ended.out
        assert any(
            problem["level"] == "error"
            for problem in json.loads(run("check", "--json", "--dsn", empty_dsn).out)["problems"]
        )


@pytest.mark.parametrize("buffered", ["-u PYTHONUNBUFFERED", "PYTHONUNBUFFERED=1"])
def test_a_reader_that_goes_away_is_no_error(dsn: str, sql: Sql, buffered: str) -> None:
    sql("INSERT INTO scheduled_tasks (task_type, run_at) SELECT repeat('x', 64), now() FROM generate_series(1, 5000)")
    # Unbuffered, the interpreter would have nothing left to complain about at its end.
    tasks = f"env {buffered} {sys.executable} -m pgsched tasks --limit 5000 --dsn '{dsn}'"
    command = f"{tasks} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["141"]


def test_output_that_cannot_be_written_is_one_line(dsn: str, sql: Sql) -> None:
    command = [sys.executable, "-m", "pgsched", "enqueue", "a", "--dsn", dsn]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (74, "pgsched: cannot write the output: No space left on device\n")
    assert sql("SELECT count(*) FROM scheduled_tasks") == [(1,)]


@pytest.mark.parametrize(("closed", "arguments", "code"), [("<&-", "enqueue a -", 2), ("2>&-", "demo small", 0)])
def test_a_stream_that_is_closed_is_no_internal_error(
    dsn: str, tmp_path: Path, closed: str, arguments: str, code: int
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small/file").write_text("x")
    command = f"{sys.executable} -m pgsched {arguments} --dsn '{dsn}' {closed}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, cwd=tmp_path, env=environment, timeout=60, check=False
    )
    assert done.returncode == code, done


def test_json_is_json_in_any_locale(dsn: str, sql: Sql) -> None:
    sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('é😀', now())")
    command = [sys.executable, "-m", "pgsched", "tasks", "--json", "--dsn", dsn]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, timeout=30, check=True)
    assert [task["task_type"] for task in json.loads(done.stdout)] == ["é😀"]


@pytest.mark.parametrize("depth", [2000, 1200])
def test_a_payload_too_deep_for_python_is_shown(run: InProcess, sql: Sql, depth: int) -> None:
    """Too deep to be read, or with some versions of Python only to be printed."""
    deep = "[" * depth + "]" * depth
    [[task]] = sql(
        "INSERT INTO scheduled_tasks (task_type, run_at, payload) VALUES ('a', now(), %s) RETURNING id", deep
    )
    ended = run("show", str(task), "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.dumps(json.loads(ended.out)["task"]["payload"]).strip('"') == deep


def test_a_supervisors_name_that_no_database_can_hold(run: InProcess) -> None:
    ended = run("scale", "2", "--supervisor", os.fsdecode(b"\xff"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("pgsched: --supervisor ")


def test_a_silent_server_ends_a_command_in_time(run: InProcess, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgsched.store import schema

    require = schema.require

    def fall_silent(connection: psycopg.Connection[Any]) -> None:
        require(connection)
        proxy.silence()

    monkeypatch.setattr(schema, "require", fall_silent)
    begun = time.monotonic()
    ended = run("status", "--dsn", proxy.dsn, "--db-timeout", "500ms")
    assert time.monotonic() - begun < 9, "it has waited for the default of that limit"
    assert ended == Ended(
        3, "", "pgsched: no answer from the database within 0.5 s, the limit that --db-timeout sets\n"
    )


def test_check_waits_for_no_lock(run: InProcess, dsn: str, connect: Callable[..., psycopg.Connection]) -> None:
    """Whoever holds the tables for himself is why it is asked."""
    connect(autocommit=False).execute("LOCK TABLE scheduled_tasks")
    ended = run("check", "--dsn", dsn, "--db-timeout", "500ms")
    assert ended == Ended(
        3, "", "pgsched: no answer from the database within 0.5 s, the limit that --db-timeout sets\n"
    )


def test_an_unforeseen_error_is_one_line(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgsched.store import views

    def fail(*_: object) -> None:
        raise RuntimeError("connection postgresql://jane:s3cr3t@db/work\nis odd")

    monkeypatch.setattr(views, "status", fail)
    ended = run("status")
    assert ended.code == 70
    assert ended.err == (
        "pgsched: internal error: RuntimeError: connection postgresql://jane:***@db/work is odd"
        " (PGSCHED_DEBUG=1 shows where)\n"
    )
    shown = run("status", environment={"PGSCHED_DEBUG": "1"})
    assert "Traceback" in shown.err
    assert "s3cr3t" not in shown.err


def test_ctrl_c_is_quiet(run: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    from pgsched.store import views

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(views, "status", interrupt)
    assert run("status") == Ended(130, "", "")


def test_commands_leave_no_session_behind(run: InProcess, connect: Callable[..., psycopg.Connection[Any]]) -> None:
    for command in (["status"], ["tasks"], ["show", "1"], ["enqueue", "compress"], ["prune", "--older-than", "1d"]):
        run(*command)
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgsched%' AND datname = current_database()"
    )
    connection = connect()
    assert eventually(lambda: connection.execute(query).fetchone() == (0,))
