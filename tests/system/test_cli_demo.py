"""The demo: real files through the real supervisor, in a queue of its own."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inprocess import server_place
from tests.support import Server, eventually
from tests.system.conftest import CommandLine


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory of 40 files, in two levels."""
    directory = tmp_path / "files"
    (directory / "below").mkdir(parents=True)
    for number in range(40):
        parent = directory / "below" if number % 2 else directory
        (parent / f"{number:02}.txt").write_text(f"line {number}\n" * 5000)
    return directory


@pytest.fixture
def place() -> Iterator[Path]:
    """Where an embedded server may live."""
    with server_place() as place:
        yield place


def test_every_file_is_a_task_and_the_table_adds_up(
    pgsched_cli: CommandLine, server: Server, dsn: str, files: Path
) -> None:
    server.sql("INSERT INTO scheduled_tasks (task_type, run_at) VALUES ('theirs', now())", dsn=dsn)
    ended = pgsched_cli.run("demo", str(files), "--processes", "2", timeout=60)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert re.fullmatch(r"completed 40 of 40 tasks in [0-9.]+ s", lines[-1])
    bytes_in = sum(path.stat().st_size for path in files.rglob("*.txt"))
    assert lines[0].split() == ["files", "40"]
    assert lines[1].startswith(f"bytes in     {bytes_in:,} (")
    assert sum(".txt" in line for line in lines) == 3
    assert "Traceback" not in ended.err
    (row,) = server.sql(
        "SELECT count(*), min(status), count(DISTINCT queue), sum((result->>'bytes_in')::bigint) FROM scheduled_tasks"
        " WHERE task_type = 'pgsched.demo.compress'",
        dsn=dsn,
    )
    assert row == (40, "completed", 1, bytes_in)
    # What was there before is nobody's business here.
    assert server.value("SELECT status FROM scheduled_tasks WHERE task_type = 'theirs'", dsn=dsn) == "queued"


def test_a_file_that_cannot_be_compressed_is_shown_and_makes_the_answer_a_no(
    pgsched_cli: CommandLine, files: Path
) -> None:
    running = pgsched_cli("demo", str(files), "--processes", "1")
    running.wait_for("compressing 40 files")
    (files / "below" / "39.txt").unlink()
    ended = running.wait(60)
    assert ended.code == 1, ended.err
    lines = ended.out.splitlines()
    assert lines[-1].startswith("completed 39 of 40 tasks")
    assert "39.txt" in lines[-2]
    assert "FileNotFoundError" in lines[-2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_to_do_and_no_process(
    pgsched_cli: CommandLine, server: Server, dsn: str, files: Path, number: int
) -> None:
    for path in files.rglob("*.txt"):
        path.write_bytes(path.read_bytes() * 50)
    running = pgsched_cli("demo", str(files), "--processes", "1")
    eventually(lambda: server.value("SELECT count(*) FROM scheduled_tasks WHERE status = 'completed'", dsn=dsn))
    running.signal(number)
    ended = running.wait()
    assert ended.code == 130
    assert re.fullmatch(r"completed \d+ of 40 tasks in [0-9.]+ s", ended.out.splitlines()[-1])
    assert "Traceback" not in ended.err
    assert not running.processes()
    assert server.value("SELECT count(*) FROM scheduled_tasks_live", dsn=dsn) == 0
    assert server.value("SELECT count(*) FROM pgsched_supervisors", dsn=dsn) == 0


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_files(pgsched_cli: CommandLine, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    ended = pgsched_cli.run("demo", str(tmp_path / name))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"pgsched: DIRECTORY '{tmp_path / name}': ")
    assert ended.err.count("\n") == 1


def test_libpqs_environment_does_not_lead_it_astray(pgsched_cli: CommandLine, place: Path, files: Path) -> None:
    del pgsched_cli.environment["PGSCHED_DSN"]
    environment = {
        "PGSCHED_DATA_DIR": str(place / "data"),
        "PGHOST": "db.invalid",
        "PGHOSTADDR": "192.0.2.1",
        "PGSERVICE": "nowhere",
    }
    ended = pgsched_cli.run("demo", str(files), environment=environment, timeout=60)
    assert ended.code == 0, ended.err
    assert ended.err.startswith(f"pgsched: using the embedded server in {place / 'data'}\n")


def test_it_draws_a_bar_on_a_terminal(pgsched_cli: CommandLine, dsn: str, files: Path) -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, **pgsched_cli.environment, "COLUMNS": "100"}
    demo = subprocess.Popen(
        [sys.executable, "-m", "pgsched", "demo", str(files)],
        stdout=subprocess.PIPE,
        stderr=child,
        env=environment,
        start_new_session=True,
    )
    os.close(child)
    drawn = b""
    try:
        while data := os.read(parent, 4096):
            drawn += data
    except OSError:
        pass  # the terminal's other side is closed
    out, _ = demo.communicate(timeout=60)
    os.close(parent)
    assert demo.returncode == 0
    assert out.splitlines()[-1].startswith(b"completed 40 of 40")
    assert drawn.count(b"\r[") > 1
    assert b"40/40 files (100%)" in drawn
