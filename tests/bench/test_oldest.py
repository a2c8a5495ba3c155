"""The private server of PostgreSQL 15."""

from pathlib import Path

import pytest

from benchmarks.oldest import BINARIES, oldest_server
from tests.support import eventually, gone


@pytest.mark.skipif(not (BINARIES / "postgres").exists(), reason="PostgreSQL 15 is not installed")
def test_the_oldest_server_leaves_nothing_behind() -> None:
    with oldest_server() as server:
        assert server is not None
        assert server.version // 10_000 == 15
        assert server.data_directory is not None
        directory = server.data_directory.parent
        postmaster = int((server.data_directory / "postmaster.pid").read_text().split()[0])
        with server.fresh():
            assert not gone(postmaster)
    eventually(lambda: gone(postmaster), "the server has ended")
    assert not directory.exists()


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.oldest.BINARIES", tmp_path)
    with oldest_server() as server:
        assert server is None
