"""Readers of what users write."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.errors import UsageError
from pgsched.quantities import (
    Address,
    available_cpus,
    check_name,
    format_bytes,
    format_seconds,
    parse_address,
    parse_bytes,
    parse_number,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1.5", 1.5), ("250ms", 0.25), ("5m", 300), ("2h", 7200), ("7d", 604800), ("1w", 604800), (".5s", 0.5), (3, 3)],
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "m", "-1", "5M", "1e3", "nan", "inf", "5 minutes", "0x10", "1,5", "٣", True, None, float("nan"), 1e400],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(UsageError, match=r"^--lease .*: must be from 2s to 2m, in seconds or like "):
        parse_seconds(text, "--lease", 2, 120)


@pytest.mark.parametrize("text", ["1.9", "121", "3m", "100ms"])
def test_durations_have_a_range(text: str) -> None:
    with pytest.raises(UsageError, match=f"^--lease '{text}': must be from 2s to 2m"):
        parse_seconds(text, "--lease", 2, 120)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 << 20),
        ("512M", 512 << 20),
        ("1g", 1 << 30),
        ("1.5 kib", 1536),
        ("77", 77),
        ("2TB", 2 << 40),
        (5, 5),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-5", "12 parsecs", "1MiBs", "5EiB", False, None])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(UsageError, match=r"^memory .*: must be from 1KiB to 1GiB, in bytes or like "):
        parse_bytes(text, "memory", 1 << 10, 1 << 30)


@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "abc", "", " 4", "1025", "100000", "٤", 0, 1.0, True, None, "1" * 5000]
)
def test_f83_what_is_no_number_of_processes(value: object) -> None:
    with pytest.raises(UsageError, match=r"^--processes .{1,90}: must be a whole number from 1 to 1024$"):
        parse_number(value, "--processes", 1, 1024)


def test_numbers() -> None:
    assert parse_number("-7", "--namespace", -10, 10) == -7
    assert parse_number(1024, "--processes", 1, 1024) == 1024


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9808", Address("127.0.0.1", 9808)),
        ("[::1]:0", Address("::1", 0)),
        ("localhost:65535", Address("localhost", 65535)),
        ("none", None),
    ],
)
def test_address(text: str, address: Address | None) -> None:
    assert parse_address(text) == address
    assert address is None or str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "9808", ":9808", "::1:80", "[::1]", "[localhost]:80", "host:", "host:http", "host:70000", "a b:80", "host:-1"],
)
def test_f83_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--metrics-address '") as caught:
        parse_address(text, "--metrics-address")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\x00", "\ud800", "x" * 65, None, 5])
def test_names_that_the_database_or_a_reader_would_not_keep(name: object) -> None:
    with pytest.raises(UsageError, match=r"^queue "):
        check_name("queue", name)


def test_names() -> None:
    assert check_name("queue", "Übersicht 2 / b") == "Übersicht 2 / b"
    assert check_name("queue", "x" * 64) == "x" * 64


@given(st.one_of(st.integers(0, 10**8).map(float), st.integers(0, 999).map(lambda n: n / 1000)))
def test_a_duration_that_was_written_can_be_read(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds)


@given(st.integers(0, 1 << 50))
def test_a_size_that_was_written_can_be_read(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


class TestAvailableCpus:
    @staticmethod
    def tree(root: Path, files: dict[str, str]) -> Path:
        for name, text in files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    @pytest.fixture(autouse=True)
    def eight_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def test_affinity_alone(self, tmp_path: Path) -> None:
        assert available_cpus(tmp_path) == 8

    @pytest.mark.parametrize(("quota", "cpus"), [("150000 100000", 2), ("max 100000", 8), ("50000 100000", 1)])
    def test_version_2(self, tmp_path: Path, quota: str, cpus: int) -> None:
        files = {"proc/self/cgroup": "0::/a.slice/b.service\n", "sys/fs/cgroup/a.slice/b.service/cpu.max": quota}
        assert available_cpus(self.tree(tmp_path, files)) == cpus

    def test_version_2_parent_is_narrower(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "0::/a.slice/b.service\n",
            "sys/fs/cgroup/a.slice/b.service/cpu.max": "400000 100000",
            "sys/fs/cgroup/a.slice/cpu.max": "300000 100000",
        }
        assert available_cpus(self.tree(tmp_path, files)) == 3

    def test_version_2_path_that_only_the_host_can_see(self, tmp_path: Path) -> None:
        files = {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000"}
        assert available_cpus(self.tree(tmp_path, files)) == 2

    def test_version_1(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
        assert available_cpus(self.tree(tmp_path, files)) == 3

    def test_nonsense_is_ignored(self, tmp_path: Path) -> None:
        files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "lots of them\n"}
        assert available_cpus(self.tree(tmp_path, files)) == 8
