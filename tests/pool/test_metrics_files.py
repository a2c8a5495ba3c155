"""The metrics directory, with real processes that are killed: broken files, restarts, forks, leftovers."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgsched.errors import ResourceError, UsageError
from pgsched.ops.directory import PREFIX, RESERVED, VARIABLE, MetricsDirectory, make_directory
from pgsched.ops.recorder import MARGIN, NoRecorder, Recorder, make, recorder_path
from tests.scraped import Scraped
from tests.support import ROOT

DURATION = "scheduler_task_execution_duration_seconds"


@pytest.fixture
def shared() -> Iterator[MetricsDirectory]:
    made = make_directory()
    yield made
    made.close()


@pytest.fixture
def directory(shared: MetricsDirectory) -> Path:
    return shared.path


@contextmanager
def recording(slot: int = 0) -> Iterator[Recorder | NoRecorder]:
    """A worker's recorder; closed at the end, as the end of a process would."""
    recorder = make(slot)
    yield recorder
    recorder.close()


def record_one(slot: int = 0) -> None:
    with recording(slot) as recorder:
        recorder.ran("compress", "completed", 0.01, 0.1)


def python(source: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that runs the source with our modules and the metrics directory."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def finished(source: str, **environment: str) -> str:
    with python(source, **environment) as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return output.decode()


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class TestRecorder:
    def test_an_attempt_is_counted_in_all_three_histograms(self, directory: Path) -> None:
        with recording() as recorder:
            recorder.ran("compress", "completed", 0.03, 0.7)
            recorder.ran("compress", "completed", 0.05, 61.0)
            recorder.ran("compress", "failed", 11.0, -0.1)
        scraped = Scraped.from_directory(directory)
        completed = {"task_type": "compress", "status": "completed"}
        assert scraped.value(f"{DURATION}_bucket", **completed, le="0.025") == 0
        assert scraped.value(f"{DURATION}_bucket", **completed, le="0.05") == 2
        assert scraped.value(f"{DURATION}_sum", **completed) == pytest.approx(0.08)
        failed = {"task_type": "compress", "status": "failed"}
        assert scraped.value(f"{DURATION}_bucket", **failed, le="10.0") == 0
        assert scraped.value(f"{DURATION}_bucket", **failed, le="+Inf") == 1
        latency = "scheduler_task_latency_seconds"
        assert scraped.value(f"{latency}_bucket", task_type="compress", le="0.1") == 1
        assert scraped.value(f"{latency}_bucket", task_type="compress", le="1.0") == 2
        assert scraped.value(f"{latency}_bucket", task_type="compress", le="60.0") == 2
        assert scraped.value(f"{latency}_count", task_type="compress") == 3
        assert scraped.value(f"{latency}_sum", task_type="compress") == pytest.approx(61.7)
        turnaround = "pgsched_task_turnaround_seconds"
        assert scraped.value(f"{turnaround}_count", task_type="compress") == 2
        assert scraped.value(f"{turnaround}_bucket", task_type="compress", le="1.0") == 1

    def test_a_worker_imports_nothing_big_for_it(self, directory: Path) -> None:
        output = finished(
            """
            import sys
            from pgsched.ops import recorder
            made = recorder.make(0)
            made.ran("compress", "completed", 0.1, 0.1)
            print(sorted({"prometheus_client", "http.server", "asyncio", "ssl", "psycopg", "click"} & set(sys.modules)))
            """
        )
        assert output == "[]\n"
        assert Scraped.from_directory(directory).total(f"{DURATION}_count") == 1

    def test_many_types_grow_the_file_and_lose_nothing(self, directory: Path) -> None:
        with recording() as recorder:
            for number in range(200):
                recorder.ran(f"type-{number % 100}", "completed", 0.1, 0.1)
        scraped = Scraped.from_directory(directory)
        assert {scraped.value(f"{DURATION}_count", task_type=f"type-{n}", status="completed") for n in range(100)} == {
            2
        }
        assert (
            recorder_path(directory, "slot0").stat().st_blocks * 512 >= recorder_path(directory, "slot0").stat().st_size
        )

    def test_the_next_worker_reserves_more_before_it_comes_to_the_end_of_a_large_file(self, directory: Path) -> None:
        path = recorder_path(directory, "slot0")
        left = taken = number = 0
        with recording() as recorder:
            assert isinstance(recorder, Recorder)
            store = recorder._store
            while left >= taken or store._capacity < 4 * RESERVED:
                taken = _taken(recorder, number)
                left = store._capacity - store._used
                number += 1
        size = path.stat().st_size
        with recording() as recorder:
            assert isinstance(recorder, Recorder)
            _taken(recorder, number)
        status = path.stat()
        assert status.st_blocks * 512 >= status.st_size > size

    def test_a_task_type_with_the_longest_name_fits_into_what_is_reserved_for_it(self, directory: Path) -> None:
        with recording() as recorder:
            assert isinstance(recorder, Recorder)
            assert _taken(recorder, 0) <= MARGIN

    def test_without_a_directory_a_worker_works_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        recorder = make(0)
        assert isinstance(recorder, NoRecorder)
        recorder.ran("compress", "completed", 0.01, 0.3)

    def test_a_directory_that_is_gone_costs_a_worker_one_line(
        self, shared: MetricsDirectory, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (shared.path).rmdir()
        record_one(3)
        assert capfd.readouterr().err.startswith("pgsched: no metrics from slot3: FileNotFoundError")


def _taken(recorder: Recorder, number: int) -> int:
    """Count for a type with a name that is as long as can be, and say how many bytes of the file that has taken."""
    used: int = recorder._store._used
    recorder.ran("\N{CHEQUERED FLAG}" * 62 + f"{number:02}", "interrupted", 0.1, 0.1)
    return int(recorder._store._used) - used


class TestDeaths:
    def test_f80_what_was_noted_survives_sigkill_and_the_next_worker_goes_on(self, directory: Path) -> None:
        for _ in range(3):
            with python(
                """
                import os, signal
                from pgsched.ops import recorder
                made = recorder.make(0)
                for _ in range(100):
                    made.ran("compress", "completed", 0.01, 0.1)
                os.kill(os.getpid(), signal.SIGKILL)
                """
            ) as process:
                assert process.wait(30) == -signal.SIGKILL
        assert files(directory) == ["histogram_slot0-tasks.db"]
        assert (
            Scraped.from_directory(directory).value(f"{DURATION}_count", task_type="compress", status="completed")
            == 300
        )

    def test_f76_killed_at_any_moment_while_scraped(self, directory: Path, dice: random.Random) -> None:
        """Every scrape succeeds, and no count ever goes down."""
        source = """
            import os, sys
            from prometheus_client import Counter
            from pgsched.ops import recorder
            tasks, mine = {}, Counter("mine", "help", ["name"])
            for generation in range(1000):
                if (pid := os.fork()) == 0:
                    made = recorder.make(0)
                    for number in range(1_000_000_000):
                        made.ran(f"type-{number % 40}", "completed", 0.01, 0.1)
                        mine.labels(str(number % 40)).inc()
                print(pid, flush=True)
                os.waitpid(pid, 0)
            """
        last = 0.0
        with python(source) as process:
            assert process.stdout is not None
            for _ in range(25):
                pid = int(process.stdout.readline())
                threading.Event().wait(dice.random() * 0.01)
                scraped = Scraped.from_directory(directory)
                os.kill(pid, signal.SIGKILL)
                assert scraped.complaints == []
                total = scraped.total(f"{DURATION}_count") + scraped.total("mine_total")
                assert total >= last
                last = total
            # When it was told of the next child, and not between that one's beginning and its telling.
            pid = int(process.stdout.readline())
            process.kill()
            os.kill(pid, signal.SIGKILL)
        assert last > 0
        assert len(files(directory)) <= 3

    def test_f76_broken_files_are_left_out_and_told_once(self, directory: Path, dice: random.Random) -> None:
        record_one()
        (directory / "counter_1.db").write_bytes(b"")
        os.utime(directory / "counter_1.db", (0, 0))
        (directory / "counter_12.db").write_bytes(b"")
        (directory / "counter_2.db").write_bytes(b"abc")
        (directory / "histogram_3.db").write_bytes(dice.randbytes(1 << 20))
        (directory / "histogram_9.db").write_bytes(b"\0\1\0\0" + dice.randbytes(1 << 20))
        (directory / "counter_10.db").write_bytes(b"\xff\xff\xff\x7f" + dice.randbytes(65532))
        (directory / "counter_11.db").write_bytes(b"\xff\xff\xff\xff" + dice.randbytes(65532))
        (directory / "gauge_all_4.db").write_bytes(b"just some text\n" * 100)
        (directory / "gauge_5.db").write_bytes(bytes(65536))
        (directory / "counter_6.db").mkdir()
        os.mkfifo(directory / "counter_7.db")
        (directory / "notes.txt").write_text("mine")
        (directory / "foreign.db").write_text("mine")
        (directory / "counter_8.db").symlink_to("nowhere")
        from pgsched.ops.collector import DirectoryCollector

        told: list[str] = []
        collector = DirectoryCollector(directory, lambda name, _: told.append(name))
        for _ in range(10):
            metrics = {metric.name: metric for metric in collector.collect()}
            assert DURATION in metrics
            collector.tidy()
        assert sorted(told) == [
            "counter_1.db",
            "counter_10.db",
            "counter_11.db",
            "counter_2.db",
            "counter_6.db",
            "counter_7.db",
            "foreign.db",
            "gauge_5.db",
            "gauge_all_4.db",
            "histogram_3.db",
            "histogram_9.db",
        ]

    def test_f76_without_its_directory_a_scrape_fails_instead_of_telling_of_nothing(self, directory: Path) -> None:
        record_one()
        from pgsched.ops.collector import DirectoryCollector

        collector = DirectoryCollector(directory, lambda name, reason: pytest.fail(f"{name} {reason}"))
        assert list(collector.collect())
        shutil.rmtree(directory)
        collector.tidy()
        with pytest.raises(FileNotFoundError):
            collector.collect()

    def test_a_file_that_was_repaired_counts_again(self, directory: Path) -> None:
        record_one()
        good = recorder_path(directory, "slot0").read_bytes()
        broken = directory / "histogram_other.db"
        broken.write_bytes(b"abc")
        from pgsched.ops.collector import DirectoryCollector

        told: list[str] = []
        collector = DirectoryCollector(directory, lambda name, _: told.append(name))
        list(collector.collect())
        broken.write_bytes(b"abcdef")
        list(collector.collect())
        assert told == [broken.name]
        broken.write_bytes(good)
        counts = [s.value for m in collector.collect() for s in m.samples if s.name == f"{DURATION}_count"]
        assert counts == [2]


USERS = """
import os, sys, signal
from prometheus_client import Counter, Gauge, Histogram, Summary
shipped = Counter("shipped", "help", ["kind"])
made_at_import = Counter("made_at_import", "help")
made_at_import.inc()
loaded = Gauge("loaded", "help", multiprocess_mode="max")
sizes = Histogram("sizes", "help", buckets=[1, 10])
both = Summary("both", "help")
from pgsched.ops import recorder

def work(slot, number):
    recorder.make(slot)
    for _ in range(10):
        shipped.labels("box").inc()
        sizes.observe(5)
        both.observe(2)
        made_at_import.inc()
    loaded.set(number)

def worker(slot, number, ending=lambda: os.kill(os.getpid(), signal.SIGKILL)):
    if (pid := os.fork()) == 0:
        try:
            work(slot, number)
            ending()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
"""


class TestUsersOwnMetrics:
    """A user's module makes its metrics at import, in the forkserver; workers are forked from there."""

    def test_f77_restarts_add_no_file_and_lose_no_count(self, directory: Path) -> None:
        finished(f"{USERS}\nfor number in range(100): worker(number % 2, number)\n")
        slots = [name for name in files(directory) if "_slot" in name]
        assert slots == sorted(
            f"{kind}_slot{slot}{suffix}.db"
            for slot in (0, 1)
            for kind, suffix in (
                ("counter", ""),
                ("gauge_max", ""),
                ("histogram", ""),
                ("histogram", "-tasks"),
                ("summary", ""),
            )
        )
        assert len(files(directory)) == len(slots) + 4
        scraped = Scraped.from_directory(directory)
        assert scraped.value("shipped_total", kind="box") == 1000
        assert scraped.value("sizes_count") == 1000
        assert scraped.value("sizes_bucket", le="1.0") == 0
        assert scraped.value("both_sum") == 2000
        # Once in the forkserver, ten times in each worker: nothing was inherited.
        assert scraped.value("made_at_import_total") == 1001

    def test_a_process_that_a_task_forks_does_not_write_to_its_file(self, directory: Path) -> None:
        finished(
            f"""{USERS}
def fork_again():
    for _ in range(3):
        if (pid := os.fork()) == 0:
            for _ in range(5):
                shipped.labels("child").inc()
            os._exit(0)
        os.waitpid(pid, 0)
        shipped.labels("box").inc()
worker(0, 1, fork_again)
"""
        )
        scraped = Scraped.from_directory(directory)
        assert scraped.value("shipped_total", kind="box") == 13
        assert scraped.value("shipped_total", kind="child") == 15

    def test_f77_files_of_processes_that_are_gone_are_added_up(self, directory: Path) -> None:
        from pgsched.ops.collector import DirectoryCollector

        source = """
            from prometheus_client import Counter, Gauge, Histogram
            Counter("lazy", "help").inc(2)
            Histogram("lazy_seconds", "help").observe(0.3)
            Gauge("lazy_gauge", "help").set(5)
            """
        collector = DirectoryCollector(directory, lambda *_: pytest.fail("complained"))
        last = 0.0
        for number in range(1, 4):
            finished(source)
            before = Scraped.from_directory(directory)
            assert before.value("lazy_total") == 2 * number
            assert before.value("lazy_gauge", pid=_pid_of_gauge(directory)) == 5
            collector.tidy()
            after = Scraped.from_directory(directory)
            assert after.value("lazy_total") == 2 * number > last
            assert after.value("lazy_seconds_count") == number
            assert after.value("lazy_seconds_sum") == pytest.approx(0.3 * number)
            assert "lazy_gauge" not in after.families
            assert files(directory) == ["counter_ended.db", "histogram_ended.db"]
            last = 2 * number

    def test_files_of_a_living_process_are_left_to_it(self, directory: Path) -> None:
        from pgsched.ops.collector import DirectoryCollector

        source = """
            import sys
            from prometheus_client import Counter
            lazy = Counter("lazy", "help")
            lazy.inc()
            print(flush=True)
            sys.stdin.read(1)
            lazy.inc()
            """
        with python(source) as process:
            assert process.stdout is not None
            process.stdout.readline()
            collector = DirectoryCollector(directory, lambda *_: None)
            collector.tidy()
            assert files(directory) == [f"counter_{process.pid}.db"]
            process.communicate(b"x", timeout=10)
        assert Scraped.from_directory(directory).value("lazy_total") == 2


GUARDED = f"from pgsched.ops import guarded\nguarded.prepare()\n{USERS}"


class TestNoRoomForUsersOwnMetrics:
    def test_files_have_their_blocks_before_they_are_written(self, directory: Path) -> None:
        """A write into a hole of a mapped file is a SIGBUS where the disk is full."""
        finished(
            f"""{GUARDED}
def many():
    for number in range(2000):
        shipped.labels(f"a kind with a longer name {{number}}").inc()
        sizes.observe(number)
worker(0, 1, many)
"""
        )
        slots = list(directory.glob("*_slot0.db"))
        assert len(slots) == 4
        for path in directory.iterdir():
            assert path.stat().st_blocks * 512 >= path.stat().st_size, path
        assert Scraped.from_directory(directory).total("shipped_total") == 2010

    def test_what_is_too_long_for_a_file_is_counted_in_memory(self, directory: Path) -> None:
        """A file that has to grow twice at once is cut in between, and loses its blocks."""
        finished(
            f"""{GUARDED}
def long():
    shipped.labels("x" * 200_000).inc()
    shipped.labels("x" * 200_000).inc()
worker(0, 1, long)
"""
        )
        for path in directory.iterdir():
            assert path.stat().st_blocks * 512 >= path.stat().st_size, path
        assert Scraped.from_directory(directory).total("shipped_total") == 10

    def test_metrics_that_a_task_imports_later_are_guarded_too(self, directory: Path) -> None:
        finished(
            """
            from pgsched.ops import guarded, recorder
            guarded.prepare()
            recorder.make(0)
            from prometheus_client import Counter
            Counter("lazy", "help").inc(2)
            """
        )
        (path,) = directory.glob("counter_*.db")
        assert path.stat().st_blocks * 512 >= path.stat().st_size
        assert Scraped.from_directory(directory).value("lazy_total") == 2

    def test_a_directory_that_is_gone_costs_a_line_for_each_file(self, shared: MetricsDirectory) -> None:
        output = finished(
            f"""{GUARDED}
import shutil
sys.stderr = sys.stdout
shutil.rmtree({str(shared.path)!r})
def again():
    shipped.labels("another").inc()
    print(shipped.labels("another")._value.get(), shipped.labels("box")._value.get())
    sys.stdout.flush()
worker(0, 1, again)
"""
        )
        assert output.splitlines()[-1] == "1.0 10.0"
        told = [line.split(",")[0] for line in output.splitlines() if line.startswith("pgsched: no room")]
        assert sorted(told) == [
            f"pgsched: no room in {kind}_slot0.db" for kind in ("counter", "gauge_max", "histogram", "summary")
        ]

    def test_a_file_that_cannot_grow_keeps_what_it_has(self, directory: Path) -> None:
        output = finished(
            f"""{GUARDED}
import errno
sys.stderr = sys.stdout
def full(path, size):
    raise OSError(errno.ENOSPC, "No space left on device")
def many():
    guarded.reserve = full
    for number in range(1000):
        shipped.labels(str(number)).inc()
    shipped.labels("box").inc()
    assert shipped.labels("999")._value.get() == 1
    sys.stdout.flush()
worker(0, 1, many)
"""
        )
        told = (
            "pgsched: no room in counter_slot0.db, the rest is not counted: OSError: [Errno 28] No space left on device"
        )
        assert output == f"{told}\n"
        scraped = Scraped.from_directory(directory)
        assert scraped.value("shipped_total", kind="box") == 11
        assert 10 < scraped.total("shipped_total") < 1000
        assert (directory / "counter_slot0.db").stat().st_size == 16 * 1024


def _pid_of_gauge(directory: Path) -> str:
    (path,) = directory.glob("gauge_all_*.db")
    return path.stem.split("_")[2]


class TestDirectory:
    def test_f78_what_an_earlier_run_left_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / f"counter_{os.getpid()}.db").write_bytes(b"old format")
        (tmp_path / "histogram_slot0-tasks.db").write_bytes(b"another version")
        environ = {VARIABLE: str(tmp_path)}
        made = make_directory(environ)
        assert made.path.parent == tmp_path
        assert environ[VARIABLE] == str(made.path)
        assert files(made.path) == []
        made.close()
        assert environ == {VARIABLE: str(tmp_path)}
        assert files(tmp_path) == [f"counter_{os.getpid()}.db", "histogram_slot0-tasks.db"]

    def test_f78_two_supervisors_with_one_process_number_do_not_meet(self, tmp_path: Path) -> None:
        first, second = (make_directory({VARIABLE: str(tmp_path)}) for _ in range(2))
        assert first.path != second.path
        assert first.path.is_dir()
        first.close()
        assert second.path.is_dir()
        second.close()
        second.close()

    def test_f78_a_directory_whose_supervisor_was_killed_is_removed_and_no_other(self, tmp_path: Path) -> None:
        source = """
            from pgsched.ops.directory import make_directory
            made = make_directory()
            print(made.path, flush=True)
            input()
            """
        foreign = tmp_path / f"{PREFIX}notes"
        foreign.write_text("a file")
        with python(source, **{VARIABLE: str(tmp_path)}) as lives, python(source, **{VARIABLE: str(tmp_path)}) as dies:
            assert lives.stdout is not None
            assert dies.stdout is not None
            living = Path(lives.stdout.readline().decode().strip())
            dead = Path(dies.stdout.readline().decode().strip())
            assert living.is_dir()
            dies.kill()
            dies.wait()
            assert dead.is_dir()
            (dead / "counter_supervisor.db").write_bytes(b"x")
            made = make_directory({VARIABLE: str(tmp_path)})
            assert not dead.exists()
            assert living.is_dir()
            assert foreign.exists()
            made.close()
            lives.communicate(b"\n", timeout=10)

    def test_supervisors_that_start_at_once_do_not_take_each_other_for_dead(self, tmp_path: Path) -> None:
        made: list[MetricsDirectory] = []
        lock = threading.Lock()

        def start() -> None:
            for _ in range(10):
                one = make_directory({VARIABLE: str(tmp_path)})
                with lock:
                    made.append(one)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({one.path for one in made}) == 80
        assert all(one.path.is_dir() for one in made)
        for one in made:
            one.close()
        assert files(tmp_path) == []

    def test_one_that_was_taken_for_dead_before_it_was_locked_is_made_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = fcntl.flock
        taken: list[Path] = []

        def remove_first(handle: int, operation: int) -> None:
            if not taken:
                taken.extend(tmp_path.iterdir())
                taken[0].rmdir()
            lock(handle, operation)

        monkeypatch.setattr(fcntl, "flock", remove_first)
        made = make_directory({VARIABLE: str(tmp_path)})
        assert made.path.is_dir()
        assert made.path != taken[0]
        made.close()

    def test_it_is_private(self, directory: Path) -> None:
        assert directory.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nowhere"])
    def test_a_place_that_cannot_be_used_is_one_clear_line(self, place: str) -> None:
        with pytest.raises(UsageError, match=f"^{VARIABLE} '{place}': must be a directory that can be written to"):
            make_directory({VARIABLE: place})

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
    def test_a_place_that_has_no_room_now_may_be_tried_again(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(**_: object) -> str:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(ResourceError, match=f"^{VARIABLE} '{tmp_path}': no room for metrics"):
            make_directory({VARIABLE: str(tmp_path)})
